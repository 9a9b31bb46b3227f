"""Transfers between the daemons of organisations on one machine: what goes wrong, and how it goes on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from test_store import s3_store  # noqa: F401
from waiting import wait_for

from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.sharing.core.entries import DatasetRef
from airflow_hops.extensions.sharing.core.records import PREVIEW, Catalogue
from airflow_hops.extensions.sharing.core.statements import ENTRY, SEED, load_key, sign
from airflow_hops.runner.launchers.local import runtime_variables
from tests.extensions.sharing.organisations import Organisation, random_files, same_files

pytestmark = [pytest.mark.runtime, pytest.mark.server]
Make = Callable[..., Organisation]
REF = "north/numbers@1"


def two(organisation: Make, **settings: object) -> tuple[Organisation, Organisation]:
    north, south = organisation("north"), organisation("south", **settings)
    north.trust(south)
    south.trust(north)
    return north, south


def run_program(organisation: Organisation, program: str, *arguments: Path) -> None:
    """Runs a program in the environment with libtorrent."""
    command = [organisation.runtime / "bin" / "python", "-c", program, *arguments]
    subprocess.run(command, env=runtime_variables(organisation.runtime), check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(disk)]
    if os.geteuid() or subprocess.run(mount, check=False, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("only root can mount a small file system")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_data_set_is_previewed_fetched_and_seeded_if_configured(organisation: Make, tmp_path: Path) -> None:
    north, south = two(organisation, seeding="always")
    east = organisation("east")
    for one, other in ((north, east), (east, north), (south, east), (east, south)):
        one.trust(other)
    files = random_files(tmp_path / "files", a=2_000_000, b=10, c=0)
    entry = north.share(files)
    north.start()
    south.start()
    south.ask(REF, PREVIEW)
    south.wait_until(REF, "previewed")
    assert not south.fetched(REF).exists()
    assert not (south.data / entry.info_hash).exists()
    south.ask(REF)
    transfer = south.wait_until(REF, "seeding")
    assert (transfer.done_bytes, transfer.size_bytes) == (2_000_010, 2_000_010)
    assert same_files(south.fetched(REF), files)
    north.kill()
    east.start()
    east.ask(REF)
    east.wait_until(REF, "fetched")
    assert same_files(east.fetched(REF), files)
    wait_for(lambda: not list(east.data.iterdir()), "seeding = never removes the copy")
    south.records.withdraw(south.records.requests()[0].ref)
    wait_for(lambda: not list(south.records.all("seeds")), south.log.read_text)


def test_hostile_statements_are_refused_and_do_not_block_others(organisation: Make, tmp_path: Path) -> None:
    north, south = two(organisation)
    key, stranger = load_key(north.folder.key), load_key(organisation("stranger").folder.key)
    files = random_files(tmp_path / "files", a=1000)
    entry = north.share(files)
    other = north.share(random_files(tmp_path / "other", b=1000), name="other")
    third = north.share(random_files(tmp_path / "third", c=1000, d=10), name="third")

    def preview(path: str) -> str:
        listed = [{"path": path, "size_bytes": 1000, "sha256": "0" * 64}]
        content = json.loads(north.records.document(entry.preview) or b"") | {"files": listed}
        return north.records.keep_document(json.dumps(content).encode())

    # Which data sets fail, and why; only those that are fetched need a real info hash.
    failing: dict[str, str] = {}
    paths = ("../../up.parquet", "/etc/up.parquet", "table/.up.parquet", "table/manifest.json", "dataset.json")
    for version, path in enumerate(paths, 1):
        north.publish(
            replace(entry, name="astray", version=version, info_hash=f"{version}" * 64, preview=preview(path)).to_dict()
        )
        failing[f"north/astray@{version}"] = path
    nested = north.records.keep_document(b"[" * 1_000_000, public=True)
    north.publish(replace(entry, name="a-nested", info_hash="a" * 64, preview=nested).to_dict())
    failing["north/a-nested@1"] = ""
    north.publish(replace(entry, name="changed", torrent=other.torrent, info_hash="b" * 64).to_dict())
    failing["north/changed@1"] = "has the info hash"
    north.publish(replace(entry, name="changed", version=2, torrent=other.torrent, info_hash=other.info_hash).to_dict())
    failing["north/changed@2"] = "names other files or sizes"
    listed = json.loads(north.records.document(third.preview) or b"")
    listed["files"][0]["sha256"] = "0" * 64
    mistaken = north.records.keep_document(json.dumps(listed).encode())
    north.publish(replace(third, name="mistaken", preview=mistaken).to_dict())
    failing["north/mistaken@1"] = "its publisher made a mistake"

    north.publish(replace(entry, name="b-half", description="\ud800").to_dict())
    seed = {"info_hash": entry.info_hash, "address": "a..b:1"}
    north.records.write(sign(key, SEED, seed), "seeds", "wrong.json")
    forged = sign(key, ENTRY, entry.to_dict()) | {"content": json.dumps({**entry.to_dict(), "rows": 9})}
    north.records.write(forged, "published", "forged@1.json")
    strange = sign(stranger, ENTRY, replace(entry, name="strange").to_dict())
    north.records.write(strange, "published", "strange@1.json")
    north.records.update_catalogue(key)
    north.start()
    south.start()
    for ref in (*failing, REF):
        south.ask(ref)
    south.wait_until(REF, "fetched")
    assert same_files(south.fetched(REF), files)
    for ref, reason in failing.items():
        transfer = south.wait_until(ref, "failed")
        assert (transfer.retryable, reason in str(transfer.error)) == (False, True), transfer.error
        assert not south.fetched(ref).exists() or ref == "north/mistaken@1"
    (catalogue,) = south.records.catalogues()
    known = {"north/other@1", "north/third@1", REF, *failing}
    assert {str(each.ref) for each in catalogue.datasets} == known
    rejected = "".join(catalogue.rejected)
    for reason in (
        "forged, or damaged", "which is not trusted", "half of a surrogate pair",
        "address is 'a..b:1', expected host:port",
    ):  # fmt: skip
        assert reason in rejected

    for name in ("third@1.json", "mistaken@1.json"):
        north.records.remove("published", name)
    wait_for(lambda: not (north.data / third.info_hash).exists(), north.log.read_text)
    assert third.info_hash not in dict(north.records.all("seeds"))


def test_old_catalogues_and_replaced_versions_are_refused(organisation: Make, tmp_path: Path) -> None:
    north, south = two(organisation)
    entry = north.share(random_files(tmp_path / "files", a=1000))
    public = north.home / "store" / "_state" / "sharing" / "public" / "catalogue.json"
    old = public.read_text()
    north.publish(replace(entry, name="second").to_dict())
    new = public.read_text()
    north.serve_catalogue()
    south.start()

    def catalogue(condition: Callable[[Catalogue], object]) -> Catalogue:
        def look() -> list[Catalogue]:
            south.records.ask_refresh()
            return [each for each in south.records.catalogues() if condition(each)]

        return wait_for(look, south.log.read_text)[0]

    assert len(catalogue(lambda each: each.datasets).datasets) == 2
    public.write_text(old)
    replayed = catalogue(lambda each: each.error)
    assert "has put back an old catalogue" in str(replayed.error)
    assert len(replayed.datasets) == 2
    public.write_text(new.replace('"format": 1, "statements": [{', '"format": 1, "statements": [7, {'))
    assert catalogue(lambda each: "that of other statements" in (each.error or ""))
    public.write_text(new)
    north.publish(replace(entry, rows=9).to_dict())
    replaced = catalogue(lambda each: each.rejected)
    assert "north/numbers@1 has changed its content" in replaced.rejected[0]
    assert [each.entry.name for each in replaced.datasets] == ["second"]


def test_a_peer_with_wrong_data_is_dropped_and_named(organisation: Make, tmp_path: Path) -> None:
    north, south = two(organisation)
    liar = organisation("liar")
    liar.trust(north, south)
    south.trust(liar)
    files = random_files(tmp_path / "files", a=1_000_000)
    entry = north.share(files)
    liar.share(files)
    (copy,) = (liar.data / entry.info_hash).rglob("a.parquet")
    damage(copy)
    # The liar's own libtorrent would notice.
    patch = tmp_path / "patch" / "sitecustomize.py"
    patch.parent.mkdir()
    patch.write_text(
        "import libtorrent as lt\nreal = lt.session\n"
        "lt.session = lambda settings: real({**settings, 'disable_hash_checks': True})\n"
    )
    liar.start(patch.parent)
    north.serve_catalogue()
    south.start()
    south.ask(REF)
    transfer = wait_for(lambda: (t := south.transfer(REF)) and t.dropped and t, south.log.read_text)
    assert transfer.dropped == [f"liar at {liar.address}:6881: it sent wrong data"]
    north.start()
    south.wait_until(REF, "fetched")
    assert same_files(south.fetched(REF), files)


def damage(file: Path) -> None:
    """Replaces a file, which may have other links, by one of the same size with zeros in its middle."""
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 1000] = bytes(1000)
    file.unlink()
    file.write_bytes(content)


ALL_PIECES = """
import sys
from pathlib import Path
import libtorrent as lt
torrent, resume = map(Path, sys.argv[1:])
params = lt.load_torrent_buffer(torrent.read_bytes())
params.have_pieces = [True] * params.ti.num_pieces()
resume.write_bytes(lt.write_resume_data_buf(params))
"""
"""Writes what libtorrent resumes a download from: it has all pieces."""


def test_pieces_that_were_lost_in_a_crash_are_fetched_again(organisation: Make, tmp_path: Path) -> None:
    north, south = two(organisation)
    files = random_files(tmp_path / "files", a=500_000, b=10)
    entry = north.share(files)
    here = south.data / entry.info_hash
    shutil.copytree(files, here / "data")
    damage(here / "data" / "table" / "a.parquet")
    torrent = tmp_path / "torrent"
    torrent.write_bytes(north.records.document(entry.torrent) or b"")
    run_program(south, ALL_PIECES, torrent, here.with_suffix(".resume"))
    north.start()
    south.start()
    south.ask(REF)
    south.wait_until(REF, "fetched", "failed")
    assert same_files(south.fetched(REF), files)
    assert "all pieces are checked again" in south.log.read_text()


COMPLETE_FILES = """
from pathlib import Path
from airflow_hops.core.artifacts.artifact import FileEntry
from airflow_hops.extensions.sharing.ml.transport import Torrent

class Handle:
    progress, flushes = [10, 5], 0
    def file_progress(self, flags): return self.progress
    def flush_cache(self): self.flushes += 1

handle = Handle()
a, b = FileEntry("a", 10, "0"), FileEntry("b", 10, "0")
torrent = Torrent(handle, Path(), (a, b), {})
assert torrent.complete_files() == []  # they may be in memory only
handle.progress = [10, 10]  # after the flush began
assert torrent.complete_files() == [] and handle.flushes == 1
torrent.flushed()
assert torrent.complete_files() == [a] and handle.flushes == 2
torrent.flushed()
assert torrent.complete_files() == [a, b]
"""


def test_a_file_is_complete_once_it_is_on_disk(organisation: Make) -> None:
    run_program(organisation("north"), COMPLETE_FILES)


def test_a_killed_daemon_resumes_and_vanished_peers_are_waited_for(organisation: Make, tmp_path: Path) -> None:
    north, south = two(organisation, download_mbit_s=2, stall_s=3)
    files = random_files(tmp_path / "files", a=2_000_000, b=2_000_000)
    north.share(files)
    north.start()
    south.start()
    south.ask(REF)

    def on_disk() -> int:
        return sum(path.stat().st_blocks * 512 for path in south.data.rglob("*.parquet"))

    wait_for(lambda: on_disk() > 1_000_000, south.log.read_text)
    south.kill()
    north.kill()
    south.write_settings(download_mbit_s=0)
    south.start()
    transfer = south.wait_until(REF, "failed")
    assert "no data was received for 3 s at" in str(transfer.error)
    assert f"north at {north.address}:6881" in str(transfer.error)
    assert transfer.retryable
    assert transfer.done_bytes > 500_000
    north.start()
    south.ask(REF)
    south.wait_until(REF, "fetched")
    assert same_files(south.fetched(REF), files)
    sent = next(iter(north.records.transfers().values())).uploaded_bytes
    assert sent < 3_600_000  # by the second process: what had come is not sent again


def test_a_data_set_for_which_there_is_no_room_is_not_started(organisation: Make, tmp_path: Path) -> None:
    north, south = two(organisation, disk_gb=0.001)
    north.share(random_files(tmp_path / "files", a=2_000_000))
    north.serve_catalogue()
    south.start()
    south.ask(REF)
    transfer = south.wait_until(REF, "failed")
    assert "more than disk_gb = 0.001 allows" in str(transfer.error)

    other = organisation("other", store=south.store)  # a second daemon of the store
    other.start()
    assert other.daemon is not None and other.daemon.wait(180) == 1
    assert "sharing daemon: south on " in other.log.read_text()
    assert "one daemon serves a store: end that one first" in other.log.read_text()

    south.kill()
    free_gb = shutil.disk_usage(south.home).free // 10**9
    south.write_settings(disk_gb=1, free_gb=free_gb + 10)
    south.start()
    south.ask(REF)
    transfer = wait_for(lambda: (t := south.transfer(REF)) and "free_gb" in str(t.error) and t)
    assert ("free some space" in str(transfer.error), transfer.retryable) == (True, True)


def test_full_disk_fails_the_transfer_and_a_second_request_resumes_it(
    organisation: Make, tmp_path: Path, small_disk: Path
) -> None:
    north, south = two(organisation, free_gb=0, data=str(small_disk))
    north.write_settings(upload_mbit_s=2)
    files = random_files(tmp_path / "files", a=4_000_000)
    north.share(files)
    north.start()
    south.start()
    south.ask(REF)
    wait_for(lambda: (t := south.transfer(REF)) and t.done_bytes > 200_000, south.log.read_text)
    other = small_disk / "other"
    subprocess.run(["dd", "if=/dev/zero", f"of={other}", "bs=64k", "status=none"], check=False)  # until it is full
    transfer = south.wait_until(REF, "failed")
    assert "No space left on device; free some space" in str(transfer.error)
    assert transfer.retryable
    south.ask(REF)
    wait_for(lambda: (t := south.transfer(REF)) and "it needs 0.0" in str(t.error) and t)
    other.unlink()
    north.kill()
    north.write_settings(upload_mbit_s=0)
    north.start()
    south.ask(REF)
    south.wait_until(REF, "fetched")
    assert same_files(south.fetched(REF), files)


@pytest.mark.parametrize(
    "kind", ["s3", pytest.param("hdfs", marks=[pytest.mark.spark, pytest.mark.scheduled(part="hdfs")])]
)
def test_files_are_uploaded_to_a_remote_store_one_by_one(
    organisation: Make, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    store: ArtifactStore = request.getfixturevalue(f"{kind}_store")
    north, south = two(organisation, store=store, download_mbit_s=0.5)
    files = random_files(tmp_path / "files", **{f"part-{number}": 60_000 for number in range(10)})  # a piece each
    north.share(files)
    north.start()
    south.start()
    south.ask(REF)
    place = south.records.place(DatasetRef.parse(REF))
    wait_for(lambda: len(store.files.sizes(place)) >= 1, south.log.read_text)
    assert south.records.fetched(DatasetRef.parse(REF)) is None
    south.kill()
    south.write_settings(download_mbit_s=0)
    south.start()
    south.wait_until(REF, "fetched")
    for path in files.rglob("*.parquet"):
        with store.files.open(place, path.relative_to(files).as_posix()) as stream:
            assert stream.read() == path.read_bytes()
