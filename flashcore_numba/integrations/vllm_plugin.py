"""What vLLM calls in each of its processes, by the entry point group `vllm.general_plugins`."""

import logging

BACKEND = "flashcore_numba.integrations.vllm_backend.FlashCoreBackend"


def register() -> None:
    """Offer the backend as `attention_backend="CUSTOM"`, importing nothing of it before it is chosen.

    May run more than once. A backend of somebody else that has the name already keeps it.
    """
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    custom = AttentionBackendEnum.CUSTOM
    if custom.is_overridden() and custom.get_path() != BACKEND:
        taken = custom.get_path()
        logging.getLogger(__name__).warning("CUSTOM is %s already, so FlashCore is not offered", taken)
        return
    register_backend(custom, BACKEND)
