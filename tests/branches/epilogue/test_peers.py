"""The peers compute what the kernel does: on the host, with what Inductor compiles run as it is written."""

import numpy as np
import pytest

from flashcore_numba.branches.epilogue.inputs import drawn
from flashcore_numba.branches.epilogue.operation import EPILOGUE
from flashcore_numba.branches.epilogue.outputs import OUT
from flashcore_numba.branches.epilogue.peers import PEERS

torch = pytest.importorskip("torch")
CHAINS = [("layer", {}), ("rms", {"bias": False}), ("rms", {"residual": False})]


@pytest.mark.parametrize(("norm", "options"), CHAINS, ids=str)
@pytest.mark.parametrize("label", ["attention() + Inductor", "SDPA flash + Inductor"])
def test_they_are_judged_like_the_kernel(label, norm, options, rng, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    x = drawn(rng, 2, 4, 9, 20, 64, 2, norm=norm, **options)
    tensors = {name: torch.from_numpy(array) for name, array in x.arrays.items()}
    function, backend, to_house = PEERS[label](x.problem(x.arrays), tensors)
    with backend(), torch.no_grad():
        found = to_house(function()).numpy()
    reference = EPILOGUE.reference(x)
    assert EPILOGUE.judge(OUT, found, reference, None).passed
    assert not EPILOGUE.judge(OUT, np.roll(found, 64, axis=3), reference, None).passed


def test_a_mask_that_they_align_otherwise(rng):
    x = drawn(rng, 1, 2, 9, 20, 64, causal=True)
    with pytest.raises(ValueError, match="aligned top-left"):
        PEERS["SDPA cuDNN + Inductor"](x.problem(x.arrays), {})
