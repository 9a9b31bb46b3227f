"""Checks of the sources of statistics: run as steps in the runtime environment, they return plain values to a test."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import multiprocessing
import pickle
import random
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
from statistics_equality import compare, many_strings, nested_table
from tfx_bsl.coders import csv_decoder
from tfx_bsl.coders.example_coder import RecordBatchToExamples

from airflow_hops.artifacts import BadInput
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.readers import csv as readers_csv
from airflow_hops.runtime.readers import jsonl as readers_jsonl
from airflow_hops.runtime.statistics import generate_statistics
from airflow_hops.runtime.statistics.arrow_lists import as_lists
from airflow_hops.runtime.statistics.formats import arrow, layout, parquet, row_spans, tfrecord
from airflow_hops.runtime.statistics.formats import csv as csv_format
from airflow_hops.runtime.statistics.formats import jsonl as jsonl_format
from airflow_hops.runtime.statistics.sources import CorruptFile, Part, Plan, TypesDoNotFit, plan_source
from airflow_hops.sources import Source


def table_of(rows: int, start: int = 0) -> pa.Table:
    """A table whose values every format can hold: no float that float32 has not, no text that is empty."""
    numbers = range(start, start + rows)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "ratio": pa.array([None if n % 5 == 0 else n / 4 + 0.5 for n in numbers], pa.float32()),
            "text": pa.array([None if n % 7 == 0 else f'é,"{n}"' + "\nnext" * (n % 3 == 0) for n in numbers]),
            "whole": pa.array([None if n % 11 == 0 else -n for n in numbers], pa.int64()),
        }
    )


def write(table: pa.Table, path: Path) -> Path:
    """Writes a table in the format of the file's name."""
    name = path.name.removesuffix(".gz")
    plain = path if path.name == name else path.with_name(f"plain-{name}")
    if name.endswith(".csv"):
        pa.csv.write_csv(table, plain)
    elif name.endswith(".jsonl"):
        plain.write_text("".join(json.dumps(_without_nulls(row)) + "\n" for row in table.to_pylist()))
    elif name.endswith(".parquet"):
        pq.write_table(table, plain, row_group_size=100)
    elif name.endswith(".feather"):
        pa.feather.write_feather(table, plain, compression="lz4", chunksize=100)
    elif name.endswith(".arrows"):
        with pa.ipc.new_stream(plain, table.schema) as stream:
            stream.write_table(table, max_chunksize=100)
    else:
        write_examples(plain, RecordBatchToExamples(as_lists(table.combine_chunks().to_batches()[0])))
    if path != plain:
        path.write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
    return path


def write_examples(path: Path, examples: list[bytes]) -> None:
    """A TFRecord file, written by TensorFlow."""
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for example in examples:
            writer.write(example)


def _without_nulls(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def read_all(source: Any, **options: Any) -> tuple[Plan, list[pa.RecordBatch]]:
    """All rows, as an engine reads them: it starts over with wider types."""
    plan = plan_source(source, **options)
    for _ in range(3):
        try:
            return plan, [batch for part in plan.parts for batch in plan.read(part)]
        except TypesDoNotFit as misfit:
            plan = plan.widen(pickle.loads(pickle.dumps(misfit)))
    raise AssertionError("types did not fit a third time")


def rows_of(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    """Plain rows: a list of one is its value, bytes are text, and what is missing is not there."""
    return [
        _without_nulls({name: _plain(value) for name, value in row.items()})
        for batch in batches
        for row in batch.to_pylist()
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, list) and len(value) == 1:
        return _plain(value[0])
    return value.decode() if isinstance(value, bytes) else value


def messages(cases: Mapping[str, Any], **options: Any) -> dict[str, str]:
    """What each source fails with."""
    found = {}
    for name, source in cases.items():
        try:
            read_all(source, **options)
            found[name] = "no error"
        except BadInput as error:
            found[name] = str(error)
    return found


FORMATS = ("csv", "csv.gz", "jsonl", "jsonl.gz", "parquet", "feather", "arrows", "tfrecord", "tfrecord.gz")


def every_format(context: StepContext) -> dict[str, Any]:
    """The same rows from every format, in several parts, from pickled plans, with and without a telling name."""
    row_spans.SPAN_BYTES = tfrecord._SPAN_BYTES = 4000
    layout.BATCH_BYTES = parquet.BATCH_BYTES = arrow.BATCH_BYTES = 12_000
    table = table_of(500)
    expected = sorted(map(json.dumps, rows_of(table.to_batches())))
    found: dict[str, Any] = {}
    for format_ in FORMATS:
        path = write(table, context.scratch / f"t.{format_}")
        plan, batches = read_all(path)
        again = pickle.loads(pickle.dumps(plan))
        nameless = context.scratch / f"from-{format_.replace('.', '-')}"
        nameless.write_bytes(path.read_bytes())
        _, unnamed = read_all(nameless)
        _, projected = read_all(path, exclude=["text"], columns=["text", "id", "whole"])
        found[format_] = {
            "parts": len(plan.parts),
            "batches": len(batches),
            "same": sorted(json.dumps(_ordered(row)) for row in rows_of(batches)) == expected,
            "same_by_content": rows_of(unnamed) == rows_of(batches),
            "same_unpickled": [b for part in again.parts for b in again.read(part)] == batches,
            "rows": plan.rows,
            "types": {name: str(plan.types[name]) for name in ("id", "ratio", "text", "whole")},
            "projected": sorted({name for batch in projected for name in batch.schema.names}),
        }
    for name, source in {"table": table, "batches": iter(table.to_batches(max_chunksize=30))}.items():
        plan, batches = read_all(source, exclude=["whole"])
        found[name] = {
            "parts": len(plan.parts),
            "batches": len(batches),
            "same": pa.Table.from_batches(batches) == table.drop(["whole"]),
            "types": {column: str(kind) for column, kind in plan.types.items()},
        }
    return found


def _ordered(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("id", "ratio", "text", "whole") if name in row}


def dealt_spans(context: StepContext) -> dict[str, Any]:
    """The batches of one span, dealt out to three processes that each read all of the span."""
    readers_csv.BLOCK_BYTES = csv_format.BLOCK_BYTES = readers_jsonl.BLOCK_BYTES = jsonl_format.BLOCK_BYTES = 1000
    tfrecord._DEALT_BYTES = 500
    tfrecord._DECODED_ROWS = 20
    layout.BATCH_ROWS = parquet.BATCH_ROWS = 100
    found = {}
    for format_ in ("csv.gz", "jsonl.gz", "parquet", "tfrecord.gz"):
        path = write(table_of(500), context.scratch / f"t.{format_}")
        if format_ == "parquet":
            pq.write_table(table_of(500), path)
        plan, _ = read_all(path)
        whole = replace(plan.parts[0].span, share=0, shares=1)
        ids = [
            [row["id"] for row in rows_of(list(plan.read(Part(span.size, str(path), span))))] for span in whole.dealt(3)
        ]
        found[format_] = {"shares": [len(share) for share in ids], "ids": sorted(itertools.chain(*ids))}
    return found


def folders(context: StepContext) -> dict[str, Any]:
    """Folders, globs, hidden and empty files, features that only some files have, and types that join."""
    scratch = context.scratch
    for format_ in ("csv", "jsonl", "parquet", "feather", "tfrecord"):
        (scratch / format_ / "below").mkdir(parents=True)
        write(table_of(20), scratch / format_ / f"a.{format_}")
        write(table_of(20, 20).drop(["whole"]), scratch / format_ / "below" / f"b.{format_}")
        (scratch / format_ / "_SUCCESS").write_text("")
        (scratch / format_ / ".hidden.csv").write_text("{")
        (scratch / format_ / "below" / f".b.{format_}.crc").write_text("x")
    for format_ in ("csv", "jsonl", "tfrecord"):
        (scratch / format_ / f"empty.{format_}").write_text("")
    found: dict[str, Any] = {"folders": {}}
    for format_ in ("csv", "jsonl", "parquet", "feather", "tfrecord"):
        plan, batches = read_all(str(scratch / format_))
        found["folders"][format_] = {
            "ids": [row["id"] for row in rows_of(batches)],
            "columns": sorted(plan.types),
            "whole": sum("whole" in row for row in rows_of(batches)),
            "rows": plan.rows,
        }
    found["glob"] = len(rows_of(read_all(scratch / "parquet" / "*.parquet")[1]))
    (scratch / "late").mkdir()
    (scratch / "late" / "a.csv").write_text("x,y\n1,1\n")
    (scratch / "late" / "b.csv").write_text("y,x\n2.5,\nlate,2\n")
    plan, batches = read_all(scratch / "late")
    found["joined"] = {"types": {n: str(t) for n, t in plan.types.items()}, "rows": rows_of(batches)}
    (scratch / "lines").mkdir()
    (scratch / "lines" / "a.jsonl").write_text('{"x": 1, "l": [1], "n": null}\n{"b": true}\n')
    (scratch / "lines" / "b.jsonl").write_text('{"x": 2.5, "l": [], "n": "2013-01-01", "s": {"k": 1}}\n')
    plan, batches = read_all(scratch / "lines")
    found["lines"] = {"types": {n: str(t) for n, t in plan.types.items()}, "rows": rows_of(batches)}
    return found


AWKWARD = {
    "integers": "a,b\n1,-9223372036854775808\n007,9223372036854775807\n",
    "beyond int64 is text": "a,b,c\n9223372036854775808,1,1\n1,-9223372036854775809,9223372036854775808\n1.5,2.5,x\n",
    "floats": "a,b,c,d\n.5,1e5,nan,1\n5.,-1E-3,inf,2.5\n1,2,-Infinity,1e400\n",
    "signs, underscores and blanks": "a,b,c,d\n+5,1_000, 5 ,+1.5\n6,2,7,\t2.5\n",
    "hexadecimal is text": "a,b,c\n0x1F,1,x0x1\n16,0X2,y\n",
    "empty cells": 'a,b,c,d\n1,,,""\n,,x,\n3,,,\n',
    "missing is only the empty text": "a,b,c\nNA,null,NaN\n1,2,3\n",
    "no bools, dates or times": "a,b,c,d\ntrue,2013-01-01,12:30:00,2013-01-01T05:00:00Z\nfalse,2013-01-02,12:31:00,\n",
    "quotes": 'a,b,c\n"1","x,y","say ""hi"""\n"2","z",w\n',
    "carriage returns": "a,b,c\r\n1,x,2.5\r\n2,,\r\n",
    "blank lines": "a,b\n1,2\n\n3,4\n\n",
    "one column": "a\n1\n\n2.5\n",
    "no newline at the end": "a,b\n1,2\n3,x",
    "blanks are text": "a,b\n ,1\n2,  \n",
    "other digits are text": "a,b\n٣,1\n2,²\n",
    "header alone": "a,b\n",
}  # fmt: skip
_CELLS = (
    "", "1", "-2", "3.5", "x", "1e3", "nan", "-inf", "+7", "1_0", "0x1", " 4", '"q,r"', "true", "1e999", "٣",
    "9223372036854775808", "-9223372036854775808",
)  # fmt: skip


def csv_as_tfdv(context: StepContext) -> dict[str, Any]:
    """Types and values of awkward CSV by this package, and by TFDV's own decoder."""
    draw = random.Random(2013)
    cases = {name: (text, ",") for name, text in AWKWARD.items()}
    cases["semicolons"] = ("a;b\n1;x,y\n2.5;z\n", ";")
    cases["tabs"] = ("a\tb\n1\tx,y\n2.5\t \n", "\t")
    for number in range(250):
        pools = [draw.sample(_CELLS, draw.randint(1, 4)) for _ in range(4)]
        lines = [",".join(draw.choice(pool) for pool in pools) for _ in range(draw.randint(1, 30))]
        cases[f"random {number}"] = ("a,b,c,d\n" + "\n".join(lines) + "\n", ",")
    # So short are samples and spans that most values come as a surprise.
    csv_format.SAMPLE_BYTES, row_spans._LATER_BYTES, row_spans._LATER_SAMPLES = 16, 8, 1
    row_spans.SPAN_BYTES = 64
    found = {}
    for number, (name, (text, delimiter)) in enumerate(cases.items()):
        path = context.scratch / f"{number}.csv"
        path.write_bytes(text.encode())
        plan, batches = read_all(Source(str(path), delimiter=delimiter, null_values=("",)))
        ours = [[repr(batch.column(n)[i].as_py()) for n in plan.types] for batch in batches for i in range(len(batch))]
        types, theirs = _by_tfdv(text, delimiter)
        found[name] = {
            "types": [str(kind) for kind in plan.types.values()],
            "tfdv_types": types,
            "rows": ours,
            "tfdv_rows": theirs,
        }
    return found


_NAMES = {-1: "null", 0: "int64", 1: "float", 2: "string"}


def _by_tfdv(text: str, delimiter: str) -> tuple[list[str], list[list[str]]]:
    header, *lines = text.split("\n")
    names = next(csv.reader([header.rstrip("\r")], delimiter=delimiter))
    lines = [line.rstrip("\r") for line in lines[: None if lines[-1] else -1]]
    parser = csv_decoder.ParseCSVLine(delimiter)
    parser.setup()
    parsed = [next(iter(parser.process(line))) for line in lines]
    inferrer = csv_decoder.ColumnTypeInferrer(names, skip_blank_lines=True)
    types = inferrer.create_accumulator()
    for cells, _ in parsed:
        types = inferrer.add_input(types, cells)
    infos = inferrer.extract_output(types)
    batch = next(iter(csv_decoder.BatchedCSVRowsToRecordBatch(skip_blank_lines=True).process(parsed, infos)))
    columns = [[_shown(value) for value in column.to_pylist()] for column in batch.columns]
    return [_NAMES[int(info.type)] for info in infos], [list(row) for row in zip(*columns, strict=True)]


def _shown(value: Any) -> str:
    value = value[0] if value is not None else None
    return repr(value.decode() if isinstance(value, bytes) else value)


def quoted_rows(context: StepContext) -> dict[str, Any]:
    """CSV with newlines and quotes within values, cut into spans of any length, against Python's own reader."""
    draw = random.Random(7)
    wrong, spans, uncut = [], [], 0
    for number in range(200):
        rows = [
            ["".join(draw.choices('ab,"\n', weights=[5, 5, 1, 1, 1], k=draw.randint(1, 6))) for _ in range(3)]
            for _ in range(draw.randint(1, 40))
        ]
        path = context.scratch / f"q{number}.csv"
        with path.open("w", newline="") as stream:
            writer = csv.writer(stream, lineterminator=draw.choice(["\n", "\r\n"]))
            writer.writerows([["x", "y", "z"], *rows])
        row_spans.SPAN_BYTES = draw.randint(1, 80)
        row_spans._CHUNK_BYTES = draw.randint(1, 64)
        plan, batches = read_all(path)
        spans.append(len(plan.parts))
        if [list(row.values()) for batch in batches for row in batch.to_pylist()] != rows:
            wrong.append(path.read_text())
    for number, stray in enumerate(('5" pipe', 'a"b"c', 'x"')):
        # A stray quote, then a quoted newline: quotes cannot be counted, only parsed.
        path = context.scratch / f"s{number}.csv"
        path.write_text("x,y\n" + f'{stray},1\nplain,"two\nlines"\n' * 40)
        row_spans.SPAN_BYTES = 30
        plan, batches = read_all(path)
        uncut += len(plan.parts)
        if [row["y"] for row in rows_of(batches)] != ["1", "two\nlines"] * 40:
            wrong.append(stray)
    bom = context.scratch / "bom.csv"
    bom.write_bytes("\ufeffx,y\n1,2\n".encode())
    latin = context.scratch / "latin.csv"
    latin.write_bytes("x,y\nMünchen,1\n".encode("latin-1"))
    return {
        "wrong": wrong,
        "spans": spans,
        "uncut": uncut,
        "bom": rows_of(read_all(bom)[1]),
        "latin": rows_of(read_all(Source(str(latin), encoding="latin-1"))[1]),
        "given": rows_of(read_all(Source(str(bom), schema={"x": "string"}, columns=("x",), null_values=("2",)))[1]),
    }


def late_types(context: StepContext) -> dict[str, Any]:
    """How often a source is started over when every sample misleads."""
    path = context.scratch / "late.csv"
    names = [f"c{i}" for i in range(30)]
    lines = [",".join(["1"] * 30) for _ in range(4000)]
    for number in range(30):
        lines[2000 + 60 * number] = ",".join(["late" if i == number else "1" for i in range(30)])
    path.write_text("\n".join([",".join(names), *lines]) + "\n")
    lines_path = context.scratch / "late.jsonl"
    with lines_path.open("w") as stream:
        for number in range(4000):
            stream.write(json.dumps({f"f{number // 200}": number, "n": 1 if number < 3000 else 1.5}) + "\n")
    row_spans._LATER_SAMPLES = 1
    row_spans.SPAN_BYTES = 4000
    found = {}
    for source in (path, lines_path):
        plan, batches = read_all(source)
        found[source.name] = [len(plan.types), sorted({str(t) for t in plan.types.values()}), len(rows_of(batches))]
    return found


def bounded_batches(context: StepContext) -> dict[str, Any]:
    """The largest batch of tables with long strings, and with many columns."""
    layout.BATCH_BYTES = parquet.BATCH_BYTES = tfrecord.BATCH_BYTES = 1 << 20
    long = pa.table({"s": [("x" * 100_000 if n % 2 else "y") for n in range(60)], "n": list(range(60))})
    wide = pa.table({f"c{i}": pa.array(np.zeros(600), pa.float64()) for i in range(1000)})
    found = {}
    for name, table in {"long": long, "wide": wide}.items():
        pq.write_table(table, context.scratch / f"{name}.parquet")
        sources = {"parquet": context.scratch / f"{name}.parquet", "table": table}
        if name == "long":
            sources |= {
                "tfrecord": write(table, context.scratch / "long.tfrecord"),
                "jsonl": write(table, context.scratch / "long.jsonl"),
                "csv": write(table, context.scratch / "long.csv"),
            }
        for kind, source in sources.items():
            _, batches = read_all(source)
            found[f"{name} {kind}"] = {
                "largest": max(batch.nbytes for batch in batches),
                "rows": sum(batch.num_rows for batch in batches),
            }
    tiny = pa.table({"n": np.zeros(300_000)})
    found["rows"] = [batch.num_rows for batch in read_all(tiny)[1]]
    return found


def typed_columns(context: StepContext) -> dict[str, Any]:
    """Types that TFDV knows under another name, and those that it does not know."""
    kept = pa.table(
        {
            "vector": pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2)),
            "code": pa.array([b"ab", b"\xff\xfe", None], pa.binary(2)),
            "category": pa.array(["x", None, "x"]).dictionary_encode(),
            "flag": pa.array([True, False, None]),
            "nested": pa.array([[[1], [2, 3]], [], None], pa.list_(pa.list_(pa.int64()))),
            "structs": pa.array([[{"a": 1, "b": ["x"]}], None, []]),
            "nothing": pa.nulls(3),
        }
    )
    path = context.scratch / "kept.feather"
    pa.feather.write_feather(kept, path)
    _, batches = read_all(path)
    dotted = context.scratch / "dotted.parquet"
    pq.write_table(pa.table({"a.b": [1], "a": [{"b": 3, "c": ["x"]}]}), dotted)
    refused = {
        "timestamp": pa.array([0], pa.timestamp("us", "UTC")),
        "date": pa.array([0], pa.date32()),
        "decimal": pa.array([1], pa.decimal128(5, 2)),
        "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        "struct of dates": pa.array([{"d": None}], pa.struct([("d", pa.date32())])),
    }
    cases: dict[str, Any] = {}
    for name, column in refused.items():
        pq.write_table(pa.table({"ok": [1], "col": column}), context.scratch / f"{name}.parquet")
        cases[name] = context.scratch / f"{name}.parquet"
        cases[f"{name} in a table"] = pa.table({"ok": [1], "col": column})
    return {
        "types": {column.name: str(column.type) for column in batches[0].schema},
        "rows": repr(pa.Table.from_batches(batches).select(["vector", "code", "nested"]).to_pylist()),
        "as_tfdv_wants": [str(column.type) for column in as_lists(batches[0]).columns][:2],
        "refused": messages(cases),
        "dotted": [rows_of(read_all(dotted, exclude=[name])[1]) for name in ("a", "a.b")],
        "left_out": messages({"timestamp": cases["timestamp"]}, exclude=["col"]),
    }


def corrupt_files(context: StepContext) -> dict[str, Any]:
    """A damaged file among good ones: named, or left out, whether it is found at once or in the midst."""
    found: dict[str, Any] = {}
    for format_ in FORMATS:
        for damage in ("head", "midst"):
            folder = context.scratch / f"{format_}-{damage}"
            folder.mkdir()
            write(table_of(300), folder / f"a.{format_}")
            bad = write(table_of(300, 1000), folder / f"b.{format_}")
            write(table_of(300, 2000), folder / f"c.{format_}")
            data = bad.read_bytes()
            bad.write_bytes(_damaged(data, format_, damage))
            found[f"{format_} {damage}"] = _with_bad_file(folder)
    alone = context.scratch / "alone"
    alone.mkdir()
    (alone / "x.parquet").write_bytes(b"PAR1 no PAR1")
    found["alone"] = messages({"skip": alone}, on_corrupt="skip")["skip"]
    return found


def _damaged(data: bytes, format_: str, damage: str) -> bytes:
    if damage == "head":
        return b"\x00\x01" * 50
    if format_ in ("csv", "jsonl"):
        lines = data.split(b"\n")
        return b"\n".join([*lines[:-8], b'{"broken": ' if format_ == "jsonl" else b"1,2,3,4,5,6,7", *lines[-8:]])
    if format_ == "parquet":  # the header of the first page; the footer stays whole
        return data[:4] + bytes(b ^ 0x55 for b in data[4:24]) + data[24:]
    middle = len(data) // 2
    # Compressed and checked formats notice a changed byte; others notice an end that is missing.
    if format_ in ("tfrecord", "tfrecord.gz", "csv.gz", "jsonl.gz", "feather"):
        return data[:middle] + bytes(b ^ 0x55 for b in data[middle : middle + 20]) + data[middle + 20 :]
    return data[:middle]


def _with_bad_file(folder: Path) -> dict[str, Any]:
    try:
        read_all(folder)
        failed = ["no error", ""]
    except CorruptFile as error:
        again = pickle.loads(pickle.dumps(error))
        failed = [Path(again.file).name, str(again)]
    plan = plan_source(folder, on_corrupt="skip")
    ids: set[int] = set()
    for _ in range(2):
        try:
            ids = {row["id"] for part in plan.parts for row in rows_of(list(plan.read(part)))}
            break
        except CorruptFile as corrupt:
            plan = plan.without(corrupt.file, str(corrupt))
    return {
        "failed": failed,
        "kept": [len([i for i in ids if start <= i < start + 300]) for start in (0, 1000, 2000)],
        "skipped": {Path(name).name: reason for name, reason in plan.skipped.items()},
    }


def statistics_as_tfdv(context: StepContext) -> dict[str, Any]:
    """Where statistics of files differ from those of TFDV's own pipelines; and those of JSON lines from Parquet's."""
    import tensorflow_data_validation as tfdv

    draw = random.Random(11)
    lines = [
        f"{n},{draw.choice(_CELLS[:9])},{draw.choice(['', 'UA', 'é'])},{n / 7 if n > 300 else n}" for n in range(400)
    ]
    text = context.scratch / "mixed.csv"
    text.write_text("id,mixed,carrier,late\n" + "\n".join(lines) + "\n")
    examples = write(nested_table().select(["numbers", "large", "words"]), context.scratch / "lists.tfrecord")
    strings = many_strings().append_column("n", pa.array(range(60_000)))
    found = {
        "csv": compare(
            generate_statistics(text, workers=2), tfdv.generate_statistics_from_csv(str(text)), pa.table({})
        ),
        "tfrecord": compare(
            generate_statistics(examples, workers=2),
            tfdv.generate_statistics_from_tfrecord(str(examples)),
            pa.table({}),
        ),
        # Top values of so many are counted in a second reading.
        "jsonl": compare(
            generate_statistics(write(strings, context.scratch / "strings.jsonl")),
            generate_statistics(write(strings, context.scratch / "strings.parquet")),
            strings,
        ),
    }
    return found


def bad_input(context: StepContext) -> dict[str, str]:
    """What each source that cannot be used is refused with."""
    scratch = context.scratch
    (scratch / "none").mkdir()
    (scratch / "types").mkdir()
    write(pa.table({"x": [1, 2]}), scratch / "types" / "a.parquet")
    write(pa.table({"x": ["one"]}), scratch / "types" / "b.parquet")
    (scratch / "fields").mkdir()
    (scratch / "fields" / "a.jsonl").write_text('{"x": 1}\n')
    (scratch / "fields" / "b.jsonl").write_text('{"x": "one"}\n')
    (scratch / "kinds").mkdir()
    write(pa.table({"x": [1]}), scratch / "kinds" / "a.tfrecord")
    write(pa.table({"x": pa.array([1.5], pa.float32())}), scratch / "kinds" / "b.tfrecord")
    (scratch / "formats").mkdir()
    write(table_of(3), scratch / "formats" / "a.parquet")
    write(table_of(3), scratch / "formats" / "b.csv")
    texts = {
        "twice.csv": b"a,b,a\n1,2,3\n",
        "ragged.csv": b"a,b\n1,2\n3\n",
        "empty.csv": b"",
        "latin.csv": "a\nM\u00fcnchen\n".encode("latin-1"),
        "mixed.jsonl": b'{"x": 1}\n{"x": "one"}\n',
        "array.jsonl": b"[1, 2]\n",
        "unknown.bin": bytes(range(256)) * 4,
        "typed.csv": b"a,b\n1,2\nx,3\n",
    }
    for name, text in texts.items():
        (scratch / name).write_bytes(text)
    record = b"no example at all"
    write_examples(scratch / "text.tfrecord", [record] * 3)
    cases: dict[str, Any] = {name: scratch / name for name in [*texts, "text.tfrecord"]}
    cases |= {name: scratch / name for name in ("none", "types", "fields", "kinds", "formats", "absent.csv")}
    cases["typed.csv"] = Source(str(scratch / "typed.csv"), schema={"a": "int64"})
    cases["dated.csv"] = Source(str(scratch / "typed.csv"), schema={"b": "date32"})
    cases["lacking"] = Source(str(scratch / "typed.csv"), columns=("a", "z"))
    cases["nothing left"] = Source(str(scratch / "typed.csv"), columns=())
    cases["number"] = 7
    cases["items"] = [7]
    return messages(cases)


def from_s3(context: StepContext, *, uri: str, storage_options: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of each file in a bucket, read in this process and in a forked one."""
    found = {}
    for format_ in FORMATS:
        plan, batches = read_all(Source(f"{uri}/t.{format_}", storage_options=storage_options))
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
            forked = pool.submit(_read_part, plan).result(timeout=60)
        expected = rows_of(table_of(60).to_batches())
        found[format_] = [[_ordered(row) for row in rows] == expected for rows in (rows_of(batches), forked)]
    found["folder"] = len(rows_of(read_all(Source(f"{uri}/folder", storage_options=storage_options))[1]))
    return found


def _read_part(plan: Plan) -> list[dict[str, Any]]:
    return rows_of([batch for part in plan.parts for batch in plan.read(part)])


def write_files(context: StepContext, *, folder: str) -> list[str]:
    """A small table in every format."""
    return [str(write(table_of(60), Path(folder) / f"t.{format_}")) for format_ in FORMATS]
