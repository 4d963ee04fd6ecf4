"""The forms of a job: everything untrusted stays text, and what is saved stays small."""

from __future__ import annotations

import base64
import io
import json
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfnb.events import Checkpoint, Failure, Gap, LogLine, Note, Phase, PhaseChanged, Points, Progress
from kfnb.state import JobState
from kfnb.views import html, notebook, picture, plain, table, terminal, text, words

NOW = 100.0


def line(text: str, *, rank: int | None = 0, transient: bool = False, sequence: int = 0) -> LogLine:
    return LogLine(0, rank, sequence, text, 0.0, "stdout", transient)


def running(*events: object) -> JobState:
    state = JobState()
    state.add([PhaseChanged(Phase.RUNNING, "", 40.0), *events])  # type: ignore[list-item]
    return state


class Tags(HTMLParser):
    """The tags and attributes of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


OURS = {"div", "bdi", "details", "summary", "pre", "span", "i"}
EVIL = "<img src=x onerror=alert(1)></pre><script>alert(2)</script>&amp;\"'"


def page(state: JobState, **options: object) -> Tags:
    return Tags(html.render(state, "digits-ab12c", NOW, **options))  # type: ignore[arg-type]


def test_nothing_a_job_says_becomes_markup() -> None:
    state = running(
        line(EVIL),
        line(EVIL, transient=True, rank=1),
        line(f"\x1b[31m{EVIL}\x1b[0m"),
        Points(EVIL, 0, EVIL, 0, [1], [0.0], [float("nan")]),
        Points(".", 0, EVIL, 0, [1], [0.0], [1.0]),
        Progress(0, 1, 2, EVIL, 50.0),
        Note(EVIL, "warning", 0.0),
        Gap(0, 2, EVIL, 0.0),
        Checkpoint(3, EVIL, 0, 0.0),
        Failure(0, 1, 0, "exception", EVIL, EVIL, EVIL, 3, 0.0),
        PhaseChanged(Phase.FAILED, EVIL, 60.0),
    )
    state.transient[0] = line(EVIL, transient=True)
    seen = page(state, footer=[words.Line("info", EVIL)])
    assert seen.tags <= OURS
    assert seen.attributes <= {"style", "open"}
    assert seen.text.count("<img src=x onerror=alert(1)>") >= 9


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_any_line_stays_text(said: str) -> None:
    assert Tags(html.log_line(line(said))).tags <= OURS
    shown = text.log_line(line(said))
    assert shown == "[0] " + words.clean(said)
    assert not any(char < " " and char != "\t" for char in shown)


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b[2J\x1b[Hcleared", "cleared"),
        ("a\x1b", "a"),
        ("bell\x07 nul\x00 c1\x9b31m", "bell nul c131m"),
        ("tab\tstays", "tab\tstays"),
        ("plain", "plain"),
    ],
)
def test_escape_sequences_are_taken_out(said: str, left: str) -> None:
    assert words.clean(said) == left


def test_colours_become_colours_and_nothing_else_does() -> None:
    shown = html.log_line(line("a \x1b[1;31mred\x1b[0m b \x1b[38;5;200mpink\x1b[48;2;1;2;3m \x1b[2Jc"))
    assert f'<span style="color:{html.RED};font-weight:bold">red</span>' in shown
    assert Tags(shown).text == "[0] a red b pink c"
    assert html.log_line(line("\x1b[" + "9" * 5000 + "m!")).endswith("!</bdi>")


def test_the_picture_is_data_of_our_own_and_says_its_values() -> None:
    state = running(Points(".", 0, EVIL, 0, [1, 2], [0.0, 1.0], [0.5, 0.25]))
    png = picture.png(state)
    assert png is not None
    seen = page(state, picture=png)
    assert seen.tags <= OURS | {"img"}
    assert seen.attributes <= {"style", "open", "src", "alt"}
    shown = html.image(png, f"{EVIL} 0.25 at step 2")
    assert shown.count("<") == 1
    assert f'src="data:image/png;base64,{base64.b64encode(png).decode()}"' in shown
    assert "width:480px" in shown


def test_right_to_left_text_cannot_reorder_the_page() -> None:
    shown = html.log_line(line("\u202eevil\u2066"))
    assert "<bdi>\u202eevil\u2066</bdi>" in shown


def test_text_says_what_matters() -> None:
    state = running(
        line("hello"),
        Progress(0, 10, 40, "epochs", 50.0),
        Progress(0, 20, 40, "epochs", 60.0),
        Points(".", 0, "loss", 0, [7], [0.0], [0.25]),
        Points(".", 0, "accuracy", 0, [7], [0.0], [0.9712345]),
        Gap(1, 1204, "log rotated", 0.0),
    )
    shown = text.render(state, "digits-ab12c", 60.0)
    assert shown.splitlines() == [
        "digits-ab12c · Running · 20s",
        "  ██████████░░░░░░░░░░ 20 of 40 epochs (50%), about 20s left, 1 s an epoch",
        "  loss 0.25, accuracy 0.9712 at step 7",
        "  ! 1,204 lines of node 1 are gone (log rotated)",
        "",
        "[0] hello",
    ]


def test_a_waiting_job_says_why() -> None:
    state = JobState()
    state.add([PhaseChanged(Phase.PENDING, "waits for 2 GPUs, 1 is free", 40.0)])
    assert text.render(state, "digits-ab12c", NOW).splitlines() == [
        "digits-ab12c · Pending · for 1m 0s",
        "  waits for 2 GPUs, 1 is free",
    ]


def test_a_failed_job_names_the_rank_and_the_line() -> None:
    failed = Failure(1, 3, 0, "exception", "ValueError", "bad batch", "...", 4, 50.0, first_line=2)
    state = running(failed, PhaseChanged(Phase.FAILED, "Rank 3 failed", 60.0))
    assert "  ! Rank 3 (node 1) raised ValueError: bad batch at line 5 of the cell" in text.render(state, "d", NOW)


def test_series_of_the_same_tag_are_told_apart() -> None:
    state = running(Points("train", 0, "loss", 0, [1], [0.0], [1.0]), Points("val", 0, "loss", 0, [2], [0.0], [2.0]))
    assert words.scalars_text(state) == "train/loss 1 (step 1), val/loss 2 (step 2)"


def test_a_series_of_many_ranks_is_told_once() -> None:
    state = running(*(Points(".", rank, "lr", 0, [1], [0.0], [0.1 + rank]) for rank in range(64)))
    assert words.scalars_text(state) == "lr (rank 0 of 64) 0.1 at step 1"


def test_many_series_are_counted() -> None:
    state = running(*(Points(".", 0, f"t{index}", 0, [1], [0.0], [1.0]) for index in range(1000)))
    assert words.scalars_text(state).endswith("at step 1, and 992 more")


def noisy(count: int, size: int) -> JobState:
    state = running(line("a progress bar at 45%", transient=True, rank=2))
    for start in range(0, count, 10_000):
        state.add([line("x" * size, sequence=start + index, rank=index % 2) for index in range(10_000)])
    return state


def test_a_noisy_job_is_small_in_the_saved_notebook() -> None:
    state = noisy(200_000, 200)
    forms = [render(state, "d", NOW, **notebook.FINAL) for render in (text.render, html.render)]  # type: ignore[operator]
    assert sum(map(len, forms)) < 150_000
    for form in forms:
        assert "lines not shown here" in form
        assert "a progress bar at 45%" in form
    shown = words.excerpt(state, **notebook.FINAL)
    assert shown.omitted + len(shown.head) + len(shown.tail) == 200_000


def test_long_lines_do_not_make_it_large() -> None:
    state = noisy(10_000, 5_000)
    assert len(html.render(state, "d", NOW, **notebook.FINAL)) < 100_000  # type: ignore[arg-type]
    shown = words.excerpt(state, **notebook.FINAL)
    assert shown.tail
    assert shown.omitted + len(shown.head) + len(shown.tail) == 10_000


def test_a_short_log_is_whole() -> None:
    state = running(*(line(f"line {index}", sequence=index) for index in range(240)))
    shown = words.excerpt(state, **notebook.FINAL)
    assert shown.omitted == 0
    assert [one.text for one in (*shown.head, *shown.tail)] == [f"line {index}" for index in range(240)]


def test_a_pipe_gets_plain_lines_and_no_status() -> None:
    out = io.StringIO()
    view, state = terminal.TerminalView(out, "digits-ab12c"), JobState()
    events = [
        PhaseChanged(Phase.RUNNING, "", 1.0),
        line("\x1b[32mgreen\x1b[0m \x1b[2J"),
        line("50%", transient=True),
        Points(".", 3, "loss", 0, [4], [0.0], [float("nan")]),
    ]
    state.add(events)
    view.batch(state, events)
    view.look(state, NOW)
    view.finish(["done"])
    assert out.getvalue().splitlines() == [
        "== digits-ab12c: Running",
        "[0] green ",
        "== loss of rank 3 first became nan at step 4",
        "== done",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_colours_and_a_status_line_in_place() -> None:
    out = Terminal()
    view, state = terminal.TerminalView(out, "d"), running()
    view.look(state, NOW)
    view.batch(state, [line("\x1b[32mgreen\x1b[2J")])
    view.finish()
    assert out.getvalue() == "\r\x1b[KRunning · 1m 0s\r\x1b[K[0] \x1b[32mgreen\x1b[0m\n"


def test_one_rank_alone() -> None:
    out = io.StringIO()
    view = terminal.TerminalView(out, "d", rank=1)
    view.batch(JobState(), [line("of 0"), line("of 1", rank=1)])
    assert out.getvalue() == "[1] of 1\n"


def test_events_are_strict_json() -> None:
    events = [
        line("caf\u00e9 \x00"),
        Points(".", 0, "loss", 0, [1, 2], [0.0, 1.0], [float("nan"), float("-inf")]),
        PhaseChanged(Phase.FAILED, "why", 1.0),
        Progress(0, float("inf"), None, "", 1.0),
    ]
    decoded = [json.loads(plain.dumps(plain.as_dict(event)), parse_constant=pytest.fail) for event in events]
    assert [one["event"] for one in decoded] == ["log", "points", "phase", "progress"]
    assert decoded[0]["text"] == "caf\u00e9 \x00"
    assert decoded[1]["values"] == ["nan", "-inf"]
    assert decoded[2]["phase"] == "Failed"
    assert decoded[3]["done"] == "inf"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0s"), (59.4, "59s"), (59.6, "1m 0s"), (72, "1m 12s"), (7380, "2h 3m"), (273600, "3d 4h")],
)
def test_durations(seconds: float, said: str) -> None:
    assert words.duration(seconds) == said


def test_tables_are_escaped_and_aligned() -> None:
    shown = table.Table(("job", "why"), [("a", EVIL), ("long-name", "")], "none")
    assert Tags(shown._repr_html_()).tags <= {"table", "thead", "tbody", "tr", "th", "td"}
    assert repr(shown).splitlines()[2] == "long-name"
    assert repr(table.Table(("job",), [], "You have no jobs.")) == "You have no jobs."
