"""Gathering runs: tables and figures, the tidy tables, and what they must not touch."""

import gzip
import json
import os
import shutil
import sys

import pytest

from experiments import gather, run_folder, run_tables, solve
from experiments.atomic_files import read_csv
from experiments.run_folder import Run
from tests.experiments.tiny_runs import rows_of


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["gather", *map(str, arguments)])
    gather.main()


def refused(monkeypatch, capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, *arguments)
    assert end.value.code == 2
    return capsys.readouterr().err


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_gathering_skips_trainings(trained, monkeypatch, capsys):
    message = refused(monkeypatch, capsys, trained)
    assert message == f"error: {trained} has no finished run\n"


def test_gathering_nothing_is_an_error(tmp_path, monkeypatch, capsys):
    message = refused(monkeypatch, capsys, tmp_path)
    assert message == f"error: {tmp_path} has no finished run\n"


def test_tables_figures_and_report_are_the_same_from_folders_and_from_tables(
    finished, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(solve, "main", None)  # nothing is solved
    gathered = tmp_path / "from_folders"
    run(monkeypatch, finished, "--output", gathered)
    figures = ("clustering_mnist", "clustering_fashion", "qp_double", "qp_triple", "gevp", "demo")
    for name in figures:
        for ending in ("png", "svg"):
            assert (gathered / "figures" / f"{name}.{ending}").stat().st_size > 10_000
    for name in ("demo_clusters", "qp_double", "qp_triple", "gevp", "gevp_powers", "beyond"):
        rows = rows_of(gathered / "tables" / f"{name}.csv")
        lines = (gathered / "tables" / f"{name}.md").read_text().splitlines()
        assert len(rows) == len(lines) - 2 >= 1
        assert len(lines[0].split(" | ")) == len(rows[0])
    printed = capsys.readouterr().out
    assert f"tables in {gathered}/tables, figures in {gathered}/figures" in printed

    run(monkeypatch, finished, "--keep", tmp_path / "results")
    run(monkeypatch, tmp_path / "results", "--report", tmp_path / "R.md")
    drawn = sorted((tmp_path / "results" / "figures").iterdir())
    assert {path.suffix for path in drawn} == {".png"}
    for path in drawn:
        assert path.read_bytes() == (gathered / "figures" / path.name).read_bytes()
    text = (tmp_path / "R.md").read_text()
    assert "Not run." not in text
    assert "![gevp](results/figures/gevp.png)" in text


# --- tidy tables


def test_tables_give_back_the_runs_exactly(finished, trained, tmp_path):
    for source in (finished, trained):
        runs = run_folder.read(source)
        run_tables.keep(runs, source, tmp_path)
    kept = {(run.config["name"], run.key): run for run in run_tables.read(tmp_path)}
    originals = [*run_folder.read(finished), *run_folder.read(trained)]
    assert len(kept) == len(originals)
    for original in originals:
        copy = kept[original.config["name"], original.key]
        assert copy.run == original.run
        assert copy.history == original.history
        assert copy.tables.get("candidates") == original.tables.get("candidates")


@pytest.mark.parametrize(
    "value", [None, True, 1, 1.0, 1e-300, 0.1 + 0.2, "a, b", "1", "1.0", "null", "", [1, "x"], {}]
)
def test_a_cell_keeps_value_and_type(value, tmp_path):
    run = Run({"run": "a/seed=0", "seed": 0, "config": {"name": "x", "key": {"of": value}}})
    run_tables.keep([run], tmp_path / "runs", tmp_path / "results")
    (back,) = run_tables.read(tmp_path / "results")
    assert back.run == run.run
    assert type(back.config["key"]["of"]) is type(value)


def test_keeping_again_changes_no_byte_and_keeping_more_adds(finished, tmp_path):
    runs = run_folder.read(finished)
    run_tables.keep(runs[:3], finished, tmp_path / "in_turns")
    run_tables.keep(runs[3:], finished, tmp_path / "in_turns")
    run_tables.keep(runs, finished, tmp_path / "at_once")
    before = content(tmp_path / "in_turns")
    assert list(before.values()) == [
        (tmp_path / "at_once" / path.relative_to(tmp_path / "in_turns")).read_bytes()
        for path in before
    ]
    run_tables.keep(runs[1:2], finished, tmp_path / "in_turns")
    assert content(tmp_path / "in_turns") == before


def test_keeping_touches_no_file_that_it_did_not_write(finished, tmp_path, monkeypatch):
    foreign = [tmp_path / name for name in ("thesis.tex", "gevp/notes.txt", "gevp/old/run.json")]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    run(monkeypatch, finished, "--keep", tmp_path)
    assert [path.read_text() for path in foreign] == ["mine"] * 3
    assert (tmp_path / "gevp" / "runs.csv.gz").exists()


@pytest.mark.parametrize("target", [".", "gevp", "kept", ".."])
def test_runs_are_not_kept_in_their_own_source(finished, target, tmp_path, monkeypatch, capsys):
    source = tmp_path / "runs"
    shutil.copytree(finished, source)
    before = content(tmp_path)
    message = refused(monkeypatch, capsys, source, "--keep", source / target)
    assert message == f"error: --keep must be a folder apart from {source}, got {source / target}\n"
    assert content(tmp_path) == before


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "..", "a/b", "", None, 3])
def test_a_record_with_a_name_that_leads_elsewhere_writes_nothing(
    finished, name, tmp_path, monkeypatch, capsys
):
    shutil.copytree(finished / "gevp", tmp_path / "runs")
    (path,) = (tmp_path / "runs").rglob("run.json")
    record = json.loads(path.read_text())
    record["config"]["name"] = name
    path.write_text(json.dumps(record))
    before = content(tmp_path)
    message = refused(
        monkeypatch, capsys, tmp_path / "runs", "--keep", tmp_path / "a" / "b" / "kept"
    )
    assert message.startswith(f"error: {path} is not a record of a run: name must be a plain")
    assert message.endswith(f"got {name!r}\n")
    assert content(tmp_path) == before


def test_a_kept_run_is_not_replaced_by_one_with_other_settings(
    finished, tmp_path, monkeypatch, capsys
):
    shutil.copytree(finished / "gevp", tmp_path / "runs")
    run(monkeypatch, tmp_path / "runs", "--keep", tmp_path / "kept")
    (path,) = (tmp_path / "runs").rglob("run.json")
    path.write_text(path.read_text().replace('"omega": 3.0', '"omega": 4.0'))
    before = content(tmp_path / "kept")
    message = refused(monkeypatch, capsys, tmp_path / "runs", "--keep", tmp_path / "kept")
    assert "with other settings (alm.omega: 3.0 -> 4.0)" in message
    assert content(tmp_path / "kept") == before


def test_a_file_that_is_no_record_is_named(tmp_path, monkeypatch, capsys):
    path = tmp_path / "run.json"
    for text, reason in (("{}", "it has no 'config'"), ("half a", "Expecting value")):
        path.write_text(text)
        message = refused(monkeypatch, capsys, tmp_path)
        assert f"{path} is not a record of a run: {reason}" in message


def test_only_the_first_instances_keep_their_histories(finished, tmp_path):
    (early,) = run_folder.read(finished / "qp_double")
    late = Run(early.run | {"seed": run_tables.INSTANCES, "run": "late"}, early.tables)
    run_tables.keep([early, late], finished, tmp_path)
    kept = {run.key: run for run in run_tables.read(tmp_path)}
    assert kept[early.key].history == early.history
    assert kept["late"].history == {}
    assert kept["late"].result == early.result


def test_only_the_drawn_clustering_keeps_its_images(finished, tmp_path):
    (drawn,) = run_folder.read(finished / "clustering_mnist")
    config = drawn.config | {"nu": 0.1}
    other = Run(drawn.run | {"run": "other", "config": config}, drawn.tables)
    run_tables.keep([drawn, other], finished, tmp_path)
    kept = {run.key: run.tables["clusters"] for run in run_tables.read(tmp_path)}
    assert kept[drawn.key] == drawn.tables["clusters"]
    assert all(row["pixels"] == "" for row in kept["other"])
    assert [row["cluster"] for row in kept["other"]] == [
        row["cluster"] for row in drawn.tables["clusters"]
    ]


def test_broken_records_are_listed_and_skipped(finished, tmp_path, monkeypatch, capsys):
    shutil.copytree(finished / "gevp", tmp_path / "runs" / "good")
    for name, text in (("a", "half a"), ("b", "{}"), ("c", '{"config": 3, "run": "x"}')):
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "run.json").write_text(text)
    shutil.copytree(finished / "gevp", tmp_path / "runs" / "d")
    (path,) = (tmp_path / "runs" / "d").rglob("history.csv")
    path.write_text(path.read_text() + "1,x\n")
    message = refused(monkeypatch, capsys, tmp_path / "runs", "--keep", tmp_path / "kept")
    assert message.count("is not a record of a run") == 3
    assert f"{path} is not a history" in message
    assert message.endswith("error: 4 broken records were skipped\n")
    assert len(run_tables.read(tmp_path / "kept")) == 1


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("runs", lambda content: content[: len(content) // 2]),
        ("runs", lambda content: gzip.compress(b"no,key\n1,2\n")),
        ("runs", lambda content: gzip.compress(b"run,config.name\nx,../y\n")),
        ("history", lambda content: b"noise"),
        ("history", lambda content: gzip.compress(b"run,k\n\xff\xfe,1\n")),
        ("history", lambda content: content[:20] + b"\0\0\0\0" + content[24:]),
    ],
)
def test_damaged_tables_are_named(finished, tmp_path, monkeypatch, capsys, name, damage):
    run_tables.keep(run_tables.read(finished), finished, tmp_path / "kept")
    path = tmp_path / "kept" / "gevp" / f"{name}.csv.gz"
    path.write_bytes(damage(path.read_bytes()))
    message = refused(monkeypatch, capsys, tmp_path / "kept", "--output", tmp_path / "out")
    assert f"{path} is not a table" in message
    assert not (tmp_path / "out").exists()


def test_a_pipe_is_not_waited_for(tmp_path, monkeypatch, capsys):
    os.mkfifo(tmp_path / "run.json")
    assert "run.json is not a record of a run: not a file" in refused(monkeypatch, capsys, tmp_path)


def test_a_device_or_pipe_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="path must be a regular file"):
        run_folder.write_text(tmp_path / "pipe", "{}")
    assert (tmp_path / "pipe").is_fifo()


def test_hidden_files_of_others_stay_beside_a_table(tmp_path):
    for other in (".film.mp4-1.part", ".film.part"):
        (tmp_path / other).write_text("of another program")
    (tmp_path / ".folder-1.part").mkdir()
    (tmp_path / ".folder-1.part" / "work.txt").write_text("of somebody else")
    before = set(tmp_path.rglob("*"))
    run_folder.write_text(tmp_path / "run.json", "{}")
    assert set(tmp_path.rglob("*")) - before == {tmp_path / "run.json"}
    assert before <= set(tmp_path.rglob("*"))


def test_a_case_that_leads_elsewhere_is_refused(finished, tmp_path):
    shutil.copytree(finished / "gevp", tmp_path / "runs")
    (path,) = (tmp_path / "runs").rglob("run.json")
    record = json.loads(path.read_text())
    record["config"]["case"] = "../../x"
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match="name must be a plain folder name"):
        run_folder.read(tmp_path)


def test_a_long_table_is_read_in_bounded_memory(tmp_path):
    path = tmp_path / "history.csv"
    path.write_text("k,beta\n" + "".join(f"{k},1.0\n" for k in range(100_003)))
    rows = read_csv(path, 1000)
    assert 1000 <= len(rows) <= 2001
    assert (rows[0]["k"], rows[-1]["k"]) == ("0", "100002")
    assert len(read_csv(path)) == 100_003
