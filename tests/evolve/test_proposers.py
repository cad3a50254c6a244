"""Who proposes: an endpoint on this machine that behaves well and badly, a file of replies, a person."""

import asyncio
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice

import pytest
from openevolve.utils.code_utils import apply_diff_blocks, extract_diffs

from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course.lessons import OF_KERNELS, find
from flashcore_numba.evolve import ideas, lineage, proposers, region, source
from flashcore_numba.evolve.edits import OPERATORS, proposals
from flashcore_numba.evolve.proposers import BLOCK, Answers, Asked, Edits, Model, Recorded, block

from .stand_in import LESSON, OWN, before_last, search

KEY = "sk-this-key-is-nobodys-0123456789"
OUTSIDE = BLOCK.format(old="    const int lane = threadIdx.x % 32;", new="    const int lane = 0;")
RAW = "as it is: "
MESSAGE = '{"choices": [{"index": 0, "finish_reason": "stop", "message": %s}]}'
ASKED = Asked(1, "waits", OWN, (), "system", "user")


class Endpoint(ThreadingHTTPServer):
    """Answers requests in turn as `script` says: a reply, or the name of a way to behave badly."""

    daemon_threads = True

    def __init__(self, script):
        self.script, self.requests = list(script), []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, self.headers["Authorization"], body))
        said = self.server.script.pop(0)
        if said == "slow":
            time.sleep(1.5)
            return
        if said == "busy":
            self._send(429, {"error": {"message": "slow down"}}, ("Retry-After", "0"))
        elif said == "refused":
            key = self.headers["Authorization"]
            self._send(401, {"error": {"message": f"{key} is no key of ours"}})
        elif said.startswith(RAW):
            self._send(200, said.removeprefix(RAW))
        elif said == "streamed":
            chunk = json.dumps({"choices": [{"delta": {"content": before_last("faster")}}]})
            self._send(200, f"data: {chunk}\n\ndata: [DONE]\n\n", ("Content-Type", "text/event-stream"))
        else:
            if said == "echo":
                said = f"{before_last('echo')}\nYour key is {self.headers['Authorization']}"
            message = {"role": "assistant", "content": said}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            self._send(200, {"id": "x", "object": "chat.completion", "created": 0, "choices": [choice]})

    def _send(self, status, body, *headers):
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        for name, value in (("Content-Type", "application/json"), *headers)[-1 if headers else 0 :]:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def endpoint(monkeypatch):
    """Makes an endpoint of a script; its key is in the environment."""
    monkeypatch.setenv(proposers.KEY_VARIABLE, KEY)
    for name in ("http_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    made = []

    def make(*script):
        made.append(Endpoint(script))
        threading.Thread(target=made[-1].serve_forever, daemon=True).start()
        return made[-1]

    yield make
    for server in made:
        server.shutdown()
        server.server_close()


def test_an_endpoint_that_behaves_well_and_badly(endpoint, tmp_path, capfd):
    served = endpoint(
        before_last("faster"),
        "Try less barriers.",
        "slow",
        "slow",
        "busy",
        before_last("bug"),
        "streamed",
        "streamed",
        "refused",
        OUTSIDE,
        "echo",
    )
    model = Model(served.url, "a-model", timeout=0.5, retries=1, delay=0.01)
    record = search(model, 8, islands=1, folder=tmp_path)
    found = [each.layer or "valid" for each in record.candidates[1:]]
    assert found == ["valid", "reply", "proposer", "race", "proposer", "proposer", "region", "valid"]
    assert not served.script
    messages = [each.message for each in record.candidates]
    assert "No valid diffs found" in messages[2]
    assert "gave no reply" in messages[3] and "time" in messages[3].lower()
    assert "streaming responses are not supported" in messages[5]
    assert "[key] is no key of ours" in messages[6]
    assert record.candidates[8].reply.endswith("Your key is Bearer [key]")

    paths = {path for path, _, _ in served.requests}
    assert paths == {"/v1/chat/completions"}
    assert {given for _, given, _ in served.requests} == {f"Bearer {KEY}"}
    bodies = [json.dumps(body) for _, _, body in served.requests]
    assert not [body for body in bodies if KEY in body or str(tmp_path) in body]
    first, *_ = (body for _, _, body in served.requests)
    assert first["model"] == "a-model" and [each["role"] for each in first["messages"]] == ["system", "user"]
    assert OWN.rstrip() in first["messages"][1]["content"]
    others = [line for line in source.whole(LESSON, "")[1].splitlines() if len(line.strip()) > 30]
    task = LESSON.exercise.task
    assert not [line for line in others if line.strip() in str(first).replace(OWN, "") and line not in task]

    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.name for path in written} == {"best.cu", "evolution.json"}
    said = [*capfd.readouterr(), *(path.read_text() for path in written)]
    assert not [text for text in said if KEY in text]


@pytest.mark.parametrize(
    ("sent", "layer", "says"),
    [
        ("null", "proposer", "what it sent is no chat completion (AttributeError"),
        ('{"choices": null}', "proposer", "what it sent is no chat completion (TypeError"),
        ('{"choices": []}', "proposer", "what it sent is no chat completion (IndexError"),
        (MESSAGE % "null", "proposer", "what it sent is no chat completion"),
        (MESSAGE % '{"content": null, "tool_calls": []}', "proposer", "should have text, and has none"),
        (
            MESSAGE % '{"content": "", "reasoning_content": "Hm."}',
            "proposer",
            "should have text, and has none",
        ),
        (MESSAGE % '{"content": [{"type": "text"}]}', "proposer", "should have text, and has list instead"),
        (
            MESSAGE % json.dumps({"content": "x" * 200_001}),
            "reply",
            "200001 characters; at most 200000",
        ),
        (MESSAGE % '{"content": "\\ud800"}', "reply", "No valid diffs"),
        (
            MESSAGE % json.dumps({"content": before_last("\ud800")}),
            "region",
            "characters that no source",
        ),
        (MESSAGE[:40], "proposer", "what it sent is no chat completion (JSONDecodeError"),
    ],
)
def test_what_is_no_reply_ends_a_proposal_and_not_the_search(endpoint, tmp_path, sent, layer, says):
    served = endpoint(RAW + sent, before_last("faster"))
    model = Model(served.url, "a-model", timeout=5, retries=0)
    record = search(model, 2, islands=1, folder=tmp_path)
    assert [each.layer for each in record.candidates] == ["", layer, ""]
    assert says in record.candidates[1].message
    assert lineage.load(tmp_path).candidates == record.candidates


def test_an_address_without_an_endpoint_ends_the_search(endpoint, tmp_path):
    served = endpoint()
    served.shutdown()
    served.server_close()
    model = Model(served.url, "a-model", timeout=5, retries=1, delay=0.01)
    with pytest.raises(proposers.UnreachableError) as caught:
        search(model, 3, folder=tmp_path)
    assert f"--url: '{served.url}' cannot be reached: " in str(caught.value)
    assert len(caught.value.record.candidates) == 1
    assert lineage.load(tmp_path).candidates == caught.value.record.candidates


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000/v1", "not a url", "http://[::1", "file:///x", "http://a:99999"]
)
def test_what_is_no_address_is_refused(url, monkeypatch):
    monkeypatch.setenv(proposers.KEY_VARIABLE, KEY)
    with pytest.raises(ArgumentError, match=r"--url: '.*' is no address such as https://HOST/v1"):
        Model(url, "a-model")


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("OPENAI_API_KEY", "takes its key from OPENAI_API_KEY, which is not set"),
        ("OPENAI_BASE_URL", "--url: is needed by the proposer llm, or set OPENAI_BASE_URL"),
        ("OPENAI_MODEL", "--model: is needed by the proposer llm, or set OPENAI_MODEL"),
    ],
)
def test_a_model_needs_to_be_known(missing, says, monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL"):
        monkeypatch.setenv(name, "x")
    monkeypatch.delenv(missing)
    with pytest.raises(ArgumentError, match=says):
        Model()


def test_a_person_is_given_a_file_and_answers_in_one(tmp_path, monkeypatch):
    monkeypatch.setattr(proposers, "POLL", 0.01)
    told = []

    def person():
        for number in (1, 2):
            prompt = tmp_path / f"prompts/{number:04d}.prompt.md"
            while not prompt.exists():
                time.sleep(0.005)
            assert OWN.rstrip() in prompt.read_text()
            prompt.with_name(f"{number:04d}.answer.md").write_text(before_last("bug" if number == 1 else "x"))

    thread = threading.Thread(target=person)
    thread.start()
    record = search(Answers(tmp_path / "prompts", told.append), 2, folder=tmp_path)
    thread.join()
    assert [each.layer for each in record.candidates] == ["", "race", ""]
    assert len(told) == 2 and "0001.answer.md" in told[0]
    names = sorted(path.name for path in (tmp_path / "prompts").iterdir())
    assert names == ["0001.answer.md", "0001.prompt.md", "0002.answer.md", "0002.prompt.md"]


def test_a_file_of_replies(tmp_path):
    path = tmp_path / "replies.jsonl"
    lines = [{"reply": "one", "operator": "by hand", "says": "It is one."}, {"reply": "two"}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    found = Recorded(path)
    assert found.name == "recorded:replies.jsonl"
    assert asyncio.run(found.propose(ASKED)) == ("one", "by hand", "It is one.")
    assert asyncio.run(found.propose(ASKED._replace(number=2))) == ("two", "recorded", "")
    with pytest.raises(proposers.NothingLeftError):
        asyncio.run(found.propose(ASKED._replace(number=3)))


@pytest.mark.parametrize("text", ["no JSON", '"a string"', '{"answer": "x"}', "[1]"])
def test_what_is_no_file_of_replies_is_refused(text, tmp_path):
    path = tmp_path / "replies.jsonl"
    path.write_text(text)
    with pytest.raises(ArgumentError, match="each line is accepted as a JSON object with a reply"):
        Recorded(path)
    with pytest.raises(ArgumentError, match="cannot be read"):
        Recorded(tmp_path / "none")


def test_edits_follow_the_idea_while_there_are_some():
    for idea in ("waits", "numbers"):
        for seed in range(5):
            reply = asyncio.run(Edits(seed).propose(ASKED._replace(idea=idea)))
            assert reply.operator in ideas.IDEAS[idea] and reply.says


def applied(reply, lines):
    return apply_diff_blocks(lines, extract_diffs(reply))[0]


@pytest.mark.parametrize("key", ["warm-up", "4", "12", "14", "16"])
def test_the_reply_of_an_edit_makes_that_edit(key, rng):
    own = region.own(find(key))
    for each in islice(proposals(own, rng), 40):
        assert region.ended(applied(block(own, each.text), own)) == region.ended(each.text), each


def test_a_block_finds_its_place(rng):
    """Among lines that are there many times, or end in spaces."""
    for _ in range(300):
        old, new = (list(rng.choice(["a", "b", "b ", ""], rng.integers(2, 7))) for _ in range(2))
        old, new = ("\n".join(["x", *lines, "y"]) for lines in (old, new))
        if old != new:
            assert applied(block(old, new), old) == new


class Everything:
    def __contains__(self, text):
        return True


def test_edits_end():
    with pytest.raises(proposers.NothingLeftError, match="every edit of this parent has been tried"):
        asyncio.run(Edits(0).propose(ASKED._replace(tried=Everything())))


def test_prompts_name_what_exists():
    """A template is filled in for every lesson, and an idea has its words."""
    files = {path.stem for path in (ideas.PROMPTS / "ideas").glob("*.txt")}
    assert files == set(ideas.IDEAS)
    assert [ideas.of_island(n) for n in range(len(ideas.IDEAS) + 1)] == [
        *ideas.IDEAS,
        next(iter(ideas.IDEAS)),
    ]
    fields = set(re.findall(r"{(\w+)}", (ideas.PROMPTS / "diff_user.txt").read_text()))
    assert fields == {"artifacts", "current_program", "language"}
    for key in OF_KERNELS:
        for idea in ideas.IDEAS:
            said = ideas.system_message(find(str(key)), idea)
            assert source.whole(find(str(key)), "")[0] in said and not re.search(r"{\w+}", said)
    for path in ideas.PROMPTS.rglob("*"):
        assert path.is_dir() or path.read_text().isascii()


def test_every_operator_belongs_to_one_idea():
    known = [operator for operators in ideas.IDEAS.values() for operator in operators]
    assert len(set(known)) == len(known) and set(known) == set(OPERATORS)


def test_the_tree_and_the_operators():
    said = lineage.by_operator(search(Edits(1), 1).candidates)
    assert [(number, valid + bool(killed)) for _, number, valid, _, killed in said] == [(1, 1)]
