"""Who proposes: edits drawn from a seed, recorded replies, a model behind an endpoint, or a person."""

import asyncio
import json
import os
from collections.abc import Container
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import numpy as np

from cuda_reference.files import MachineError, write
from cuda_reference.shown import shown
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.evolve.edits import Proposal, proposals
from flashcore_numba.evolve.ideas import IDEAS
from flashcore_numba.evolve.region import ended

KEY_VARIABLE, URL_VARIABLE, MODEL_VARIABLE = "OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL"
LOOKED_AT = 400  # edits of one region that are looked at for a new one
BLOCK = "<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n"
TOKENS = 4096  # of a reply at most
BUSY = 429
AGAIN = (408, BUSY, 500, 502, 503, 504)  # of HTTP: what may be different the next time
NO_COMPLETION = (ValueError, TypeError, LookupError, AttributeError, RecursionError)  # of reading what came
POLL = 0.2  # seconds between two looks for a person's answer


class Asked(NamedTuple):
    """What a proposal is asked for: a child of `region`, which follows `idea` and is none of `tried`.

    system, user: the prompt, which a model or a person reads.
    """

    number: int
    idea: str
    region: str
    tried: Container[str]
    system: str
    user: str


class Reply(NamedTuple):
    """text: blocks of SEARCH and REPLACE. operator, says: what the record calls it, and a sentence."""

    text: str
    operator: str
    says: str = ""


class NothingLeftError(RuntimeError):
    """No proposal is left for this parent."""


class UnreachableError(MachineError):
    """Nothing answers at the address of an endpoint. `record` is that of the search which this has ended."""

    record: Any = None


class Proposer(Protocol):
    """Something that answers with a reply. `name` is what the record calls it, without secrets."""

    name: str

    async def propose(self, asked: Asked) -> Reply:
        """A reply. Raises any Exception where there is none: the search notes it and goes on, but ends with
        an UnreachableError.
        """

    async def close(self) -> None:
        """Let go of what it holds."""


class Edits:
    """Edits of the region, drawn from a seed: those of the island's idea first, and none twice."""

    name = "edits"

    def __init__(self, seed: int) -> None:
        self.seed = seed

    async def propose(self, asked: Asked) -> Reply:
        rng = np.random.default_rng([self.seed, asked.number])
        other = None
        for each in islice(proposals(asked.region, rng), LOOKED_AT):
            if ended(each.text) in asked.tried:
                continue
            if each.operator in IDEAS[asked.idea]:
                return _reply(asked.region, each)
            other = other or each
        if other is None:
            raise NothingLeftError("every edit of this parent has been tried")
        return _reply(asked.region, other)

    async def close(self) -> None:
        pass


def _reply(region: str, proposal: Proposal) -> Reply:
    return Reply(block(region, proposal.text), proposal.operator, proposal.sentence)


def block(old: str, new: str) -> str:
    """The reply that makes `new` of `old`: the lines that differ, and others around them where that helps.

    It takes the first place where the lines are found, and drops spaces and empty lines at the end of both.
    """
    before, after = old.rstrip().split("\n"), new.rstrip().split("\n")
    shorter = min(len(before), len(after))
    first = next((n for n in range(shorter) if before[n] != after[n]), shorter)
    same = next((n for n in range(shorter - first) if before[-1 - n] != after[-1 - n]), shorter - first)
    last = len(before) - same
    while True:
        search, replace = before[first:last], after[first : len(after) - (len(before) - last)]
        if not (_kept(search) and _kept(replace)):
            first, last = (first, last + 1) if last < len(before) else (first - 1, last)
        elif _place(before, search) != first:
            first -= 1
        else:
            return BLOCK.format(old="\n".join(search), new="\n".join(replace))


def _kept(lines: list[str]) -> bool:
    return bool(lines) and lines[-1] == lines[-1].rstrip() != ""


def _place(lines: list[str], some: list[str]) -> int:
    """Where some neighbouring lines are found first."""
    size = len(some)
    return next(n for n in range(len(lines)) if lines[n : n + size] == some)


class Recorded:
    """Replies of a file in the order of its lines: JSON with `reply`, and `operator` and `says` if you like.

    Raises ArgumentError for a file that is no such file.
    """

    def __init__(self, path: Path) -> None:
        self.name = f"recorded:{path.name}"
        try:
            lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
            self.replies = [
                Reply(str(each["reply"]), str(each.get("operator", "recorded")), str(each.get("says", "")))
                for each in lines
            ]
        except OSError as error:
            raise ArgumentError(f"{str(path)!r}: cannot be read ({error.strerror})") from None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ArgumentError(
                f"{str(path)!r}: each line is accepted as a JSON object with a reply, as in "
                '{"reply": "<<<<<<< SEARCH ..."}'
            ) from None

    async def propose(self, asked: Asked) -> Reply:
        if asked.number > len(self.replies):
            raise NothingLeftError("the file has no more replies")
        return self.replies[asked.number - 1]

    async def close(self) -> None:
        pass


class Model:
    """A model behind an endpoint that speaks chat/completions.

    The key is read from the environment. It is in no record, no prompt and no message: where an endpoint
    sends it back, it is blotted out. Raises ArgumentError where URL, model or key are missing.
    """

    def __init__(
        self,
        url: str | None = None,
        model: str | None = None,
        timeout: float = 300.0,
        retries: int = 3,
        delay: float = 5.0,
    ) -> None:
        url, model = url or os.environ.get(URL_VARIABLE), model or os.environ.get(MODEL_VARIABLE)
        key = os.environ.get(KEY_VARIABLE)
        for option, variable, value in (("--url", URL_VARIABLE, url), ("--model", MODEL_VARIABLE, model)):
            if not value:
                raise ArgumentError(f"{option}: is needed by the proposer llm, or set {variable}")
        if not key:
            raise ArgumentError(f"the proposer llm takes its key from {KEY_VARIABLE}, which is not set")
        if not _is_of_the_web(url or ""):
            raise ArgumentError(f"--url: {shown(url)} is no address such as https://HOST/v1")
        self.name, self._url = f"llm:{model}", url
        self._key, self._retries, self._delay = key, retries, delay
        from openevolve.config import LLMModelConfig
        from openevolve.llm.openai import OpenAILLM

        self._model = OpenAILLM(
            LLMModelConfig(
                name=model, api_base=url, api_key=key, timeout=timeout, retries=0, max_tokens=TOKENS
            )
        )

    async def propose(self, asked: Asked) -> Reply:
        messages = [{"role": "user", "content": asked.user}]
        for left in range(self._retries, -1, -1):
            try:
                text = await self._model.generate_with_context(asked.system, messages, retries=0)
                break
            except Exception as error:
                if not left or getattr(error, "status_code", BUSY) not in AGAIN:
                    said = self._without_key(_why(error))
                    if type(error.__cause__).__name__ == "ConnectError":  # httpx's, whichever its version
                        url = self._without_key(shown(self._url))
                        raise UnreachableError(f"--url: {url} cannot be reached: {said}") from None
                    raise RuntimeError(f"The endpoint gave no reply: {said}") from None
                await asyncio.sleep(self._delay)
        if not isinstance(text, str) or not text.strip():
            kind = "none" if not text or isinstance(text, str) else f"{type(text).__name__} instead"
            raise RuntimeError(f"The endpoint gave no reply: its message should have text, and has {kind}")
        return Reply(self._without_key(text), "llm")

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "[key]")

    async def close(self) -> None:
        await self._model.client.close()


def _is_of_the_web(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _why(error: Exception) -> str:
    """What went wrong between here and an endpoint: its own words, or those of the connection."""
    said = f"{type(error).__name__}: {str(error) or 'the time limit is over'}"
    if isinstance(error, NO_COMPLETION):
        return f"what it sent is no chat completion ({said})"
    return f"{said} ({error.__cause__})" if str(error.__cause__ or "") else said


class Answers:
    """A person, or an agent: the prompt is written to a file, and the answer is read from one beside it."""

    name = "file"

    def __init__(self, folder: Path, told: Any = None) -> None:
        self.folder, self.told = folder, told

    async def propose(self, asked: Asked) -> Reply:
        self.folder.mkdir(parents=True, exist_ok=True)
        prompt = self.folder / f"{asked.number:04d}.prompt.md"
        answer = self.folder / f"{asked.number:04d}.answer.md"
        write(prompt, f"{asked.system.rstrip()}\n\n{asked.user}")
        if self.told is not None:
            self.told(f"answer {prompt} in {answer}")
        size = -1
        while not answer.exists() or answer.stat().st_size != size:  # a file that still grows is not read
            size = answer.stat().st_size if answer.exists() else -1
            await asyncio.sleep(POLL)
        return Reply(answer.read_text(), "file")

    async def close(self) -> None:
        pass
