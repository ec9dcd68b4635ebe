"""The `ramet` command in a process of its own, with a real server on loopback."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import pytest

import ramet
from ramet.types import Piece, State
from tests.fork_server import command, environment, installed
from tests.waiting import PATIENCE_S

KEY = "sk-never-store-me"


class Server(ThreadingHTTPServer):
    """An OpenAI-compatible server with one model, `tiny`, that replies what the test wants."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.reply: str | None = "Answer: forty-two"  # None: never replies
        self.status = 200
        self.one_by_one = threading.Lock()
        self.asked = threading.Event()
        self.closing = threading.Event()
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._send(200, {"data": [{"id": "tiny"}]} if self.path == "/v1/models" else {})

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.one_by_one:
            server.bodies.append(body)
            server.keys.append(self.headers["Authorization"])
            reply = server.reply  # may depend on the number of requests
        server.asked.set()
        if reply is None:
            server.closing.wait()
        elif server.status != 200:
            self._send(server.status, {"error": {"message": f"{reply} {self.headers['Authorization']}"}})
        else:
            choice = {"message": {"role": "assistant", "content": reply}, "finish_reason": "stop"}
            self._send(200, {"choices": [choice], "usage": {"prompt_tokens": 30, "completion_tokens": 5}})

    def _send(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


S = TypeVar("S", bound=Server)


@contextmanager
def serving(server: S) -> Iterator[S]:
    """The server answers inside this block."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.closing.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(Server()) as server:
        yield server


def call(
    cwd: Path, *words: str | bytes, start: Callable[..., list[str | bytes]] = command, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(start(*words), cwd=cwd, env=environment(**env), capture_output=True, encoding="utf-8")


def printed(cwd: Path, *words: str, start: Callable[..., list[str | bytes]] = command, **env: str) -> str:
    done = call(cwd, *words, start=start, **env)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def complaint(cwd: Path, *words: str | bytes) -> str:
    """The error message: one line, exit code 2, no other output."""
    done = call(cwd, *words)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith("ramet: ")
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert not (cwd / "runs").exists()
    return done.stderr


def start(cwd: Path, server: Server, *question: str) -> subprocess.Popen[str]:
    """A run whose server has got the request and does not reply."""
    server.reply = None
    asked = question or ("Will it end?",)
    words = ("run", *asked, "--base-url", server.url, "--model", "tiny", "--dialect", "tools")
    process = subprocess.Popen(
        installed(*words), cwd=cwd, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert server.asked.wait(PATIENCE_S)
    return process


def stored(cwd: Path, *, ids: Sequence[str] = ("abc",), **changes: Any) -> Path:
    """A run directory with trees of one node each."""
    node = ramet.Node(index=0, parent=None, depth=0, path=(), goal="Why?", grant=9, state=State.ENDED)
    for name, value in changes.items():
        setattr(node, name, value)
    run = ramet.RunDir.create(cwd, "made")
    task, budget = ramet.Task(question="Why?"), ramet.Budget()
    run.write([ramet.Tree(id=tree, task=task, budget=budget, nodes=[node]) for tree in ids])
    return run.path


# Help.


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("", "run show sql ls fork demo tour train warmstart eval report tasks bench --version --help"),
        (
            "run",
            "--engine --base-url --model --tokens --nodes --depth --seconds --dialect --json --config --api-key "
            "--tokenizer --temperature --seed --show-budget --runs KEY=VALUE "
            "--context --system --functions --mcp --questions",
        ),
        ("show", "--tree --node --json"),
        ("sql", "--json"),
        ("fork", "--tree --node --turn --without-delegation --without-clone --say --model --runs --json KEY=VALUE"),
        ("tour", "--runs --pace"),
        ("demo", "--runs nano"),
        ("bench", "runtime learner engine"),
        ("bench learner", "--prompts --modes --json"),
        ("bench engine", "--engines --workloads --json"),
        ("train", "RECIPE KEY=VALUE --resume --runs --data --check --json"),
        ("warmstart", "RECIPE KEY=VALUE --resume --runs --data --json"),
        ("eval", "--model --methods --budgets --window --into --json KEY=VALUE"),
        ("report", "--into --json"),
        ("tasks show", "taskset.KEY=VALUE --split --start --dialect --data --json"),
        ("tasks check", "taskset.KEY=VALUE --split --data"),
        ("bench runtime", "--fanout --depth --open-nodes --repeat --python --json"),
    ],
)
def test_help_names_every_flag(tmp_path: Path, command: str, flags: str) -> None:
    text = printed(tmp_path, *command.split(), "--help")
    assert [flag for flag in flags.split() if flag not in text] == []
    assert list(tmp_path.iterdir()) == []


def test_the_version_is_printed(tmp_path: Path) -> None:
    assert printed(tmp_path, "--version") == f"ramet {ramet.__version__}\n"


# Mistakes.


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--bad"], "--bad"),
        (["nonsense"], "Commands: tour, demo, run, serve, fork, train, warmstart, eval, show, view, sql, ls, report, "),
        (["eval", "craft:hard", "--context", "64"], "Did you mean --window?"),
        (["run"], "question"),
        (["run", "q", "--bad"], "--bad"),
        (["run", "codes:train/²", "--model", "m"], "'codes:train/²' is not a task"),
        (["run", "codes:train/" + "9" * 5000, "--model", "m"], "is not a task"),
        (["run", "jsonl:all/0", "taskset.file=5", "--model", "m"], "taskset.file of jsonl: input should be"),
        (["run", "q", f"seed={'9' * 5000}"], "it is too long for a value"),
        (["tour", "--pace", "nan"], "--pace is a number of seconds from 0 up; got nan"),
        (["run", "q", "--tokens", "many"], "Invalid value for '--tokens'"),
        (["run", "q", "--tokens", "4k"], "'4k'"),
        (["run", "q", "--model", "m", "--tokens", "0"], "budget.tokens is a whole number from 1 up; got 0"),
        (["run", "q", "--model", "m", "--seconds", "nan"], "budget.seconds is a number above 0"),
        (["run", "q", "--model", "m", "--engine", "tpu"], "engine.kind"),
        (["run", "q", "--model", "m", "--base-url", "nowhere"], "base_url must be a URL like http://"),
        (["run", "q", "--model", "m", "--dialect", "pyton"], "unknown dialect 'pyton': did you mean python?"),
        (["run", "q", "--model", "m", "--tokenizer", "missing"], "missing"),
        (["run", "q", "--model", "m", "--config", "missing.toml"], "cannot read missing.toml"),
        (["run", "q", "--model", "m", "budget.tokns=5"], "did you mean budget.tokens?"),
        (["run", "q", "--model", "m", "stray"], "'stray' is not a setting: write key=value"),
        (
            ["run", "compare", "Rome", "and", "Oslo"],
            "'Rome' is not a setting: write key=value, like budget.tokens=2000, ",
        ),
        (["run", "compare", "Rome"], "and a question in quotes"),
        (
            ["run", "q", "--questions", "q.txt"],
            "'q' is not a setting: write key=value, like budget.tokens=2000, and no",
        ),
        (["run", "q"], "which model? give --model NAME"),
        (["run", " ", "--model", "m"], "the question is empty"),
        (["show", "missing"], "missing is not a run directory"),
        (["show", "no\nsuch"], "is not a run directory"),
        (["sql", "missing", "select 1"], "missing is not a run directory: it does not exist"),
        (["tour", "--pace", "slow"], "Invalid value for '--pace'"),
        (["bench", "runtime", "--fanout", "0"], "--fanout"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path: Path, words: list[str], said: str) -> None:
    assert said in complaint(tmp_path, *words)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_cannot_be_reached_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as closed:  # it has a port, which so stays free, and does not listen
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        assert f"cannot reach {url}" in complaint(tmp_path, "run", "q", "--model", "tiny", "--base-url", url)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["budget.window=64"], "budget.window is 64"),
        (["budget.money=1e-9", "budget.prices.prompt=1"], "budget.money of $1e-09"),
        (["--temperature", "nan"], "temperature"),
        (["engine.tries=0"], "tries"),
        (["engine.concurrency=-1"], "concurrency"),
    ],
)
def test_a_run_that_cannot_begin_writes_nothing(tmp_path: Path, server: Server, words: list[str], said: str) -> None:
    assert said in complaint(tmp_path, "run", "q", "--base-url", server.url, "--model", "tiny", *words)
    assert not server.asked.is_set()


def test_a_question_that_is_not_utf8_gives_no_traceback(tmp_path: Path, server: Server) -> None:
    done = call(tmp_path, "run", b"caf\xe9?", "--base-url", server.url, "--model", "tiny")
    assert done.returncode in (0, 2)
    assert "Traceback" not in done.stderr
    assert list(tmp_path.glob("runs/.*")) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "made", "--node", "5"], "has nodes 0 to 0, not 5"),
        (["show", "made", "--tree", "x"], "made has no tree 'x'"),
        (["show", "made", "--svg", "nowhere/x.svg"], "cannot write nowhere/x.svg: No such file or directory"),
        (["sql", "made", "selec 1"], "SQL: Parser Error"),
        (["sql", "made", "select nothing from nodes"], "SQL: Binder Error"),
        (["sql", "made", "select * from tree"], 'Did you mean "trees"?'),
        (["sql", "made", ""], "SQL: "),
    ],
)
def test_a_missing_node_or_tree_or_a_wrong_query_is_one_line(tmp_path: Path, words: list[str], said: str) -> None:
    stored(tmp_path)
    assert said in complaint(tmp_path, *words)


def test_characters_that_the_locale_does_not_have_are_question_marks(tmp_path: Path) -> None:
    stored(tmp_path, answer="3 \N{ALMOST EQUAL TO} 4")
    assert "\n3 ? 4\n" in printed(tmp_path, "show", "made", start=installed, PYTHONIOENCODING="ascii")


def test_values_too_long_for_a_table_are_cut_and_printed_line_by_line(tmp_path: Path) -> None:
    stored(tmp_path)
    lines = printed(tmp_path, "sql", "made", "select 1 as one, repeat('x', 2000) as long").splitlines()
    assert [line.split()[0] for line in lines] == ["row", "one", "long", "Long"]
    assert max(map(len, lines)) <= 160


@pytest.mark.parametrize("command", [["show", "made"], ["sql", "made", "select * from nodes"]])
def test_a_run_that_cannot_be_read_is_one_line(tmp_path: Path, command: list[str]) -> None:
    run = stored(tmp_path)
    (file,) = run.glob("trees/*")
    file.write_bytes(file.read_bytes()[:50])
    assert file.name in complaint(tmp_path, *command)
    (run / "meta.json").write_text('{"schema": 99}')
    assert "schema 99" in complaint(tmp_path, *command)


# Running.


def test_a_dialect_auto_that_is_named_says_why_it_is_not_native(tmp_path: Path, server: Server) -> None:
    done = call(tmp_path, "run", "2+2?", "--base-url", server.url, "--model", "tiny", "--dialect", "auto", "--json")
    assert (done.returncode, json.loads(done.stdout)["answer"] is not None) == (0, True)
    assert done.stderr == "ramet: tiny makes no native tool calls: it answered in text; the dialect is tools\n"


def test_a_run_prints_json_and_writes_a_run_directory(tmp_path: Path, server: Server) -> None:
    words = ["--base-url", server.url, "--model", "tiny", "--tokens", "500", "--nodes", "3", "--json"]
    facts = json.loads(printed(tmp_path, "run", "What is 6 × 7?", *words))
    assert (facts["answer"], facts["stop"], facts["question"]) == ("forty-two", "answered", "What is 6 × 7?")
    assert (facts["usage"]["tokens"], facts["usage"]["calls"]) == (5, 1)
    assert (facts["budget"]["tokens"], facts["budget"]["nodes"]) == (500, 3)
    assert [node["answer"] for node in facts["nodes"]] == ["forty-two"]
    assert facts["run"] == "runs/what-is-6-7"

    run = facts["run"]
    shown = printed(tmp_path, "show", run)
    assert "What is 6 × 7?" in shown
    assert "forty-two" in shown
    assert "5 of 500 tokens" in shown
    node = printed(tmp_path, "show", run, "--node", "0")
    assert "What is 6 × 7?" in node
    assert "Answer: forty-two" in node
    assert "─ sampled, turn 0 ─" in node  # what --turn of `ramet fork` takes
    assert json.loads(printed(tmp_path, "show", run, "--json")) == [
        {name: value for name, value in facts.items() if name != "run"}
    ]
    pieces = json.loads(printed(tmp_path, "show", run, "--node", "0", "--json"))["pieces"]
    assert [piece["sampled"] for piece in pieces] == [False, True]
    sql = "select answer, tokens, nodes from trees"
    assert "forty-two" in printed(tmp_path, "sql", run, sql)
    assert json.loads(printed(tmp_path, "sql", run, sql, "--json")) == [
        {"answer": "forty-two", "tokens": 5, "nodes": 1}
    ]


def test_flags_words_and_the_file_reach_the_server_and_the_config(tmp_path: Path, server: Server) -> None:
    file = tmp_path / "my.toml"
    file.write_text(
        f'temperature = 0.25\nseed = 1\nshow_budget = true\n[engine]\nbase_url = "{server.url}"\nmodel = "no"'
    )
    words = ["engine.model=tiny", "seed=7", "budget.turns=4", "--no-show-budget", "--temperature", "0.5"]
    said = printed(tmp_path, "run", "q", *words, "--config", str(file), "--runs", "elsewhere")
    assert "forty-two" in said
    assert "elsewhere/q" in said
    body = server.bodies[-1]  # the first asks whether the model calls tools
    assert (body["model"], body["temperature"]) == ("tiny", 0.5)
    assert "You have left" not in body["messages"][-1]["content"]
    config = (tmp_path / "elsewhere" / "q" / "config.toml").read_text()
    assert "seed = 7\n" in config
    assert "turns = 4\n" in config
    assert "show_budget = false\n" in config


def test_the_api_key_is_sent_and_never_stored(tmp_path: Path, server: Server) -> None:
    words = ["run", "q", "--base-url", server.url, "--model", "tiny", "--json"]
    outputs = [
        printed(tmp_path, *words, "--api-key", KEY),
        printed(tmp_path, *words, RAMET_API_KEY=KEY),
        printed(tmp_path, *words, OPENAI_API_KEY=KEY),
    ]
    assert server.keys == [f"Bearer {KEY}"] * 6  # each asks first whether the model calls tools
    assert_nowhere(KEY, tmp_path, *outputs)


def test_an_api_key_that_the_server_echoes_in_an_error_is_not_stored(tmp_path: Path, server: Server) -> None:
    server.reply, server.status = "who are you,", 401
    done = call(tmp_path, "run", "q", "--base-url", server.url, "--model", "tiny", "--api-key", KEY)
    assert done.returncode == 2
    assert "the API key was rejected" in done.stderr
    assert len(list((tmp_path / "runs").iterdir())) == 1
    assert_nowhere(KEY, tmp_path, done.stderr)


def assert_nowhere(secret: str, parent: Path, *texts: str) -> None:
    """Not in the bytes of a file, not in decompressed trees, not in these texts."""
    for run in (parent / "runs").iterdir():
        files = [path for path in run.rglob("*") if path.is_file()]
        assert len(files) == 4
        assert not any(secret.encode() in file.read_bytes() for file in files)
        assert secret not in repr(list(ramet.read_trees(run)))
    assert not any(secret in text for text in texts)


def test_the_unfinished_tree_is_stored_when_the_server_fails(tmp_path: Path, server: Server) -> None:
    server.reply, server.status = "broken inside", 400
    done = call(tmp_path, "run", "q", "--base-url", server.url, "--model", "tiny", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "broken inside" in done.stderr
    assert "runs/q" in done.stderr
    (tree,) = ramet.read_trees(tmp_path / "runs" / "q")
    assert tree.root.stop is ramet.Stop.ERROR


@pytest.mark.parametrize("verb", ["run", "eval"])
def test_a_model_that_the_server_does_not_have_leaves_no_run_behind(tmp_path: Path, server: Server, verb: str) -> None:
    server.reply, server.status = "no such model", 404
    words = {"run": ["q", "--dialect", "tools"], "eval": ["codes:eval", "-n", "2"]}[verb]
    done = call(tmp_path, verb, *words, "--base-url", server.url, "--model", "tyni")
    assert done.returncode == 2
    assert done.stderr.endswith(f"{server.url} has no model 'tyni'; it serves tiny\n")
    assert list((tmp_path / "runs").iterdir()) == []


# Interrupted.


def test_the_unfinished_tree_is_stored_on_control_c(tmp_path: Path, server: Server) -> None:
    process = start(tmp_path, server)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, err) == (130, "ramet: interrupted\n")
    assert "the tree so far is in runs/will-it-end  (" in out
    assert "interrupted" not in out
    (tree,) = ramet.read_trees(tmp_path / "runs" / "will-it-end")
    assert [node.stop for node in tree.nodes] == [ramet.Stop.CANCELLED]
    assert tree.usage.lost_tokens > 0
    assert "cancelled: no answer" in printed(tmp_path, "show", "runs/will-it-end")


def test_many_questions_say_on_control_c_how_to_resume(tmp_path: Path, server: Server) -> None:
    (tmp_path / "q.txt").write_text("Will it end?")
    process = start(tmp_path, server, "--questions", "q.txt", "--json")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    hint, last = err.splitlines()
    assert re.fullmatch(r"ramet: finished answers are kept in runs/\S+: run the same command again to resume", hint)
    assert last == "ramet: interrupted"


def test_a_whole_id_wins_over_ids_that_start_with_it(tmp_path: Path) -> None:
    run = stored(tmp_path, ids=["task/10", "task/1", "task/2"])
    assert "tree task/" not in printed(tmp_path, "show", run.name, "--tree", "task/1")
    assert printed(tmp_path, "show", run.name, "--tree", "task/").count("tree task/") == 3


def test_only_the_first_ten_of_many_trees_are_drawn(tmp_path: Path) -> None:
    run = stored(tmp_path, ids=[f"task/{place}" for place in range(30)])
    drawn = printed(tmp_path, "show", run.name)
    assert drawn.count("tree task/") == 10
    assert "Only the first 10 are shown. Show another: --tree ID; list all: " in drawn
    assert len(json.loads(printed(tmp_path, "show", run.name, "--json"))) == 30


def test_a_killed_run_has_no_tree(tmp_path: Path, server: Server) -> None:
    process = start(tmp_path, server)
    process.kill()
    process.communicate()
    run = "runs/will-it-end"
    assert printed(tmp_path, "show", run) == f"{run} has no finished tree yet\n"
    assert json.loads(printed(tmp_path, "show", run, "--json")) == []
    assert json.loads(printed(tmp_path, "sql", run, "select count(*) as n from nodes", "--json")) == [{"n": 0}]


def reads_a_line(cwd: Path, *words: str) -> None:
    """What a command does whose output is read by `head -1`: it ends, without a word."""
    with subprocess.Popen(
        installed(*words), cwd=cwd, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_a_closed_pipe_gives_no_traceback(tmp_path: Path) -> None:
    run = stored(tmp_path)
    reads_a_line(tmp_path, "sql", str(run), "select range, repeat('x', 100) as x from range(5000)", "--json")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_closed_pipe_ends_many_questions_without_a_traceback(tmp_path: Path, server: Server, form: list[str]) -> None:
    (tmp_path / "q.txt").write_text("\n".join(f"Number {i}?" for i in range(200)))
    words = ["--base-url", server.url, "--model", "tiny", "--dialect", "tools", "concurrency=2", *form]
    reads_a_line(tmp_path, "run", "--questions", "q.txt", *words)


# Brackets in text are not markup.

MARKUP = "[citation needed] [/b] [bold]x[/i]"


def test_brackets_in_results_are_printed_as_they_are(tmp_path: Path) -> None:
    goal, answer, error, said = (f"{name} {MARKUP}" for name in ("goal", "answer", "error", "said"))
    pieces = [Piece(sampled=True, text=said)]
    stored(tmp_path / MARKUP, goal=goal, answer=answer, error=error, stop=ramet.Stop.ERROR, pieces=pieces)
    run = f"{MARKUP}/made"
    assert answer in printed(tmp_path, "sql", run, "select answer from nodes")
    assert MARKUP in printed(tmp_path, "sql", run, f'select 1 as "{MARKUP}"')
    shown, node = printed(tmp_path, "show", run), printed(tmp_path, "show", run, "--node", "0")
    assert all(text in shown for text in (goal, answer))
    assert all(text in node for text in (said, error))


def test_brackets_in_paths_are_printed_as_they_are(tmp_path: Path, server: Server) -> None:
    words = ["run", "q", "--base-url", server.url, "--model", "tiny", "--runs", MARKUP]
    assert f"{MARKUP}/q" in printed(tmp_path, *words)
    ramet.RunDir.create(tmp_path / MARKUP, "empty")
    assert printed(tmp_path, "show", f"{MARKUP}/empty") == f"{MARKUP}/empty has no finished tree yet\n"


# The tour.


def test_the_tour_shows_a_refused_grant_and_a_partial_answer(tmp_path: Path) -> None:
    said = printed(tmp_path, "tour", "--pace", "0", "--runs", "made", start=installed)
    assert "one grant was refused" in said
    assert "refused: Cost of it all: 20 tokens are too few" in said
    assert "budget: partial answer" in said
    (tree,) = ramet.read_trees(tmp_path / "made" / "tour")
    refusals = [refusal for node in tree.nodes for turn in node.turns for refusal in turn.refusals]
    assert [refusal.goal for refusal in refusals] == ["Cost of it all"]  # one, as the text says
    assert {node.depth for node in tree.nodes} == {0, 1, 2}
    assert tree.usage.tokens <= tree.budget.tokens
    assert [node.goal for node in tree.nodes if node.stop is ramet.Stop.BUDGET and node.answer] == [
        "Transport for four in Oslo"
    ]
    assert "refused" in printed(tmp_path, "show", "made/tour")
