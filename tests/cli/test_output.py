"""What terminals get, and what files and pipes get."""

from __future__ import annotations

import re
import time

import pytest

from qgraph.cli import output
from qgraph.cli.documents import common_prefix, csv_text, shortened, show_table
from qgraph.cli.output import Talk, show_paragraph
from qgraph.reporting.view import Cell, Column, Table, Tone
from qgraph.text import amount, counted, percent, printable, size

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
COLUMNS = [Column("name", code=True), Column("number", number=True), Column("note", spare=True)]
ROWS = [
    ["/a/long/name/of/a/node/in/a/graph", "1", "x" * 30],
    [Cell("[red]b", Tone.BAD), "10", "why"],
]


def test_a_pipe_gets_aligned_text_without_colours(capsys):
    show_table(Table("names", COLUMNS, ROWS))
    assert capsys.readouterr().out.splitlines() == [
        "name                               number  note",
        "/a/long/name/of/a/node/in/a/graph       1  " + "x" * 30,
        "[red]b                                 10  why",
    ]


@pytest.mark.parametrize(
    ("width", "heads", "name"),
    [
        (120, ["name", "number", "note"], "/a/long/name/of/a/node/in/a/graph"),
        (70, ["name", "number", "note"], "…/name/of/a/node/in/a/graph"),
        (40, ["name", "number"], "…ong/name/of/a/node/in/a/graph"),
    ],
)
def test_a_terminal_gets_what_fits(capsys, terminal, width, heads, name):
    terminal(width)
    show_table(Table("names", COLUMNS, ROWS))
    out = capsys.readouterr().out
    assert "\x1b[31m[red]b" in out
    lines = [ESCAPE.sub("", line) for line in out.splitlines()]
    assert max(map(len, lines)) <= width
    assert lines[0].split() == heads
    assert lines[2].startswith(name)
    assert ("…" in lines[2]) is (width < 120)
    left = {120: [], 70: ["names are cut at …. --wide shows all"]}
    left[40] = ["not shown: note; names are cut at ….", "--wide shows all"]
    assert [line.rstrip() for line in lines[4:]] == left[width]
    terminal(width)
    show_table(Table("names", COLUMNS, ROWS), Talk(wide=True))
    assert ROWS[0][2] in capsys.readouterr().out


def test_columns_that_say_nothing_are_left_out(capsys):
    show_table(Table("", ["a", "b", "c"], [["1", "", "3"], ["4", "", ""]]))
    assert capsys.readouterr().out.splitlines() == ["a  c", "1  3", "4"]


def test_no_color_is_respected(capsys, terminal, monkeypatch):
    terminal(80)
    monkeypatch.setenv("NO_COLOR", "1")
    show_table(Table("names", COLUMNS, ROWS))
    show_paragraph("text", Tone.GOOD)
    Talk().error("wrong")
    captured = capsys.readouterr()
    assert "\x1b[3" not in captured.out
    assert captured.err == "error: wrong\n"


def test_errors_are_coloured_and_wrapped_on_terminals_only(capsys, terminal):
    text = "a long sentence about something " * 4
    Talk().error(text)
    assert capsys.readouterr().err == f"error: {text}\n"
    terminal(50)
    Talk().error(text)
    err = capsys.readouterr().err
    assert err.startswith("\x1b[1;31merror: ")
    assert max(len(ESCAPE.sub("", line)) for line in err.splitlines()) <= 50


def test_names_cannot_steer_the_terminal(capsys):
    evil = "a\x1b[2Jb\rc\x07\u202e\ud800"
    assert printable(evil) == r"a\x1b[2Jb\rc\x07\u202e\ud800"
    show_table(Table("", ["n"], [[evil]]))
    show_paragraph(evil)
    Talk().note(evil)
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err
    assert captured.out.count(r"\x1b[2J") == 2


def test_quiet_keeps_errors_and_warnings(capsys):
    talk = Talk(quiet=True)
    talk.note("n")
    talk.warn("w")
    talk.error("e", "more")
    assert capsys.readouterr().err == "warning: w\nerror: e\nmore\n"


def test_numbers_as_people_read_them():
    sizes = {0: "0 B", 999: "999 B", 1000: "1.0 KiB", 1536: "1.5 KiB", 131072: "128 KiB"}
    sizes |= {5 * 2**30: "5.0 GiB", 2**50: "1024 TiB"}
    assert {number: size(number) for number in sizes} == sizes
    assert [counted(n, "site") for n in (0, 1, 2)] == ["0 sites", "1 site", "2 sites"]
    assert [amount(n) for n in (None, 1.0, 1 / 3)] == ["-", "1", "0.333333"]
    assert [percent(n) for n in (None, 0.0, 1e-7, 0.25)] == ["-", "0.00%", "<0.01%", "25.00%"]


def until(capsys, text: str, *, tries: int = 600) -> str:
    """What is shown until a text is; the bar draws from another thread, ten times a second."""
    shown = ""
    for _ in range(tries):
        shown += capsys.readouterr().err
        if text in shown:
            break
        time.sleep(0.05)
    return shown


def test_progress_shows_on_terminals_when_work_takes_long(capsys, terminal, monkeypatch):
    monkeypatch.setattr(output, "_DELAY_SECONDS", 0.01)

    def work(talk: Talk, tries: int) -> str:
        with output.ProgressBar(talk) as bar:
            bar.tell("reading", 0, 0)
            shown = until(capsys, "reading", tries=tries)
            bar.tell("writing \x1b[2J", 1, 2)
            return shown + until(capsys, "writing", tries=tries)

    assert work(Talk(), 4) == ""
    terminal(80)
    assert work(Talk(quiet=True), 4) == ""
    shown = work(Talk(), 600)
    assert "reading" in shown
    assert r"writing \x1b[2J" in shown


def test_progress_in_bytes_tells_the_rate_and_the_time_left(capsys, terminal, monkeypatch):
    monkeypatch.setattr(output, "_DELAY_SECONDS", 0.01)
    terminal(120)
    with output.ProgressBar(Talk()) as bar:
        bar.tell_bytes("writing", 0, 0)
        until(capsys, "writing")
        bar.tell_bytes("writing", 1 << 30, 4 << 30)
        shown = until(capsys, " left")
    assert "1.0 GiB of 4.0 GiB" in shown
    assert "/s, 0:0" in shown
    assert " left" in shown


def test_progress_is_not_shown_for_short_work(capsys, terminal):
    terminal(80)
    with output.ProgressBar(Talk()) as bar:
        bar.tell("reading", 0, 0)
    assert capsys.readouterr().err == ""


def test_names_that_are_too_long_can_still_be_told_apart():
    names = [
        "/features/features.0/features.0.2/act_quant/export_handler/Quant",
        "/features/features.1/features.1.2/act_quant/export_handler/Quant",
        "/classifier/weight_quant/export_handler/Quant",
        "short",
    ]
    for width in (20, 27, 40, 63):
        cut = shortened(names, width)
        assert len(set(cut)) == 4
        assert max(map(len, cut)) <= width
        assert cut[3] == "short"
    assert shortened(names, 27)[0] == "….0/features.0.2/act_quant…"
    assert shortened(names, 40)[0] == "…ures.0.2/act_quant/export_handler/Quant"
    assert shortened(names, 64) == names


def test_a_name_cannot_make_rows_of_its_own(capsys):
    show_table(Table("", ["name", "x"], [["a\nb", "1"]]))
    assert capsys.readouterr().out.splitlines() == ["name  x", r"a\nb  1"]


def test_a_common_beginning_of_names_is_said_once(capsys, terminal):
    names = [f"/model/backbone/features.{n}/Conv" for n in range(3)]
    assert common_prefix(names) == "/model/backbone/features."
    assert common_prefix(["/a/b", "/a/c"]) == ""
    assert common_prefix(names[:1] * 2) == ""
    assert common_prefix(["torch::layer.weight", "torch::layer.bias"]) == "torch::layer."
    terminal(60)
    show_table(Table("", [Column("node", code=True)], [[name] for name in names]))
    lines = [ESCAPE.sub("", line).strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[2:5] == ["0/Conv", "1/Conv", "2/Conv"]
    assert " ".join(lines[5:]).startswith("in 'node', names begin with /model/backbone/features.")


def test_csv_has_whole_cells_and_plain_digits():
    rows = [[Cell("…/b", full="/a/b"), "1,006,665,728", "1,234 of them"], ["c,d", "-", "-"]]
    table = Table("names", COLUMNS, rows)
    assert csv_text([table, Table("more", ["a"], [["x"]])]).splitlines() == [
        "table,name,number,note",
        'names,/a/b,1006665728,"1,234 of them"',
        'names,"c,d",,',
        "",
        "table,a",
        "more,x",
    ]
    assert csv_text([table], "m.onnx").splitlines()[1].startswith("m.onnx,names,/a/b,")
    facts = Table("summary", ["name", "value"], [["inputs", "1,234,567"], ["shape", "1,3,224,224"]])
    assert csv_text([facts]).splitlines()[1:] == [
        "summary,inputs,1234567",
        'summary,shape,"1,3,224,224"',
    ]
