"""Transfers between the daemons of organisations on one machine: what goes wrong, and how it goes on."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import wait_for

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.extensions.sharing.core.entries import DatasetRef
from airflow_hops.extensions.sharing.core.records import PREVIEW, Catalogue
from airflow_hops.extensions.sharing.core.statements import SEED, load_key, sign
from tests.extensions.sharing.organisations import Organisation, random_files, same_files

pytestmark = [pytest.mark.runtime, pytest.mark.server]
Make = Callable[..., Organisation]
REF = "north/numbers@1"


def two(organisation: Make, **settings: object) -> tuple[Organisation, Organisation]:
    north, south = organisation("north"), organisation("south", **settings)
    north.trust(south)
    south.trust(north)
    return north, south


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


def test_a_published_data_set_is_previewed_then_fetched(organisation: Make, tmp_path: Path) -> None:
    north, south = two(organisation)
    files = random_files(tmp_path / "files", a=3_000_000, b=10, c=0)
    entry = north.share(files)
    north.start()
    south.start()
    south.ask(REF, PREVIEW)
    south.wait_until(REF, "previewed")
    assert not south.fetched(REF).exists()
    assert not (south.folder.data(south.folder.settings()) / entry.info_hash).exists()
    south.ask(REF)
    transfer = south.wait_until(REF, "fetched")
    assert (transfer.done_bytes, transfer.size_bytes) == (3_000_010, 3_000_010)
    assert same_files(south.fetched(REF), files)
    wait_for(lambda: not list(south.folder.data(south.folder.settings()).iterdir()), "seeding = never removes the copy")


def test_only_listed_keys_count(organisation: Make, tmp_path: Path) -> None:
    north, south = two(organisation)
    stranger = organisation("stranger")
    files = random_files(tmp_path / "files", a=1000)
    entry = north.share(files)
    forged = next(iter(north.records.published().values())) | {"content": json.dumps({**entry.to_dict(), "rows": 9})}
    north.records.write(forged, "published", "forged@1.json")
    stranger.share(files, name="strange")
    strange = next(iter(stranger.records.published().values()))
    north.records.write(strange, "published", "strange@1.json")
    north.records.update_catalogue(load_key(north.folder.key))
    north.start()
    south.start()
    (catalogue,) = wait_for(lambda: [c for c in south.records.catalogues() if c.datasets], south.log.read_text)
    assert [str(each.ref) for each in catalogue.datasets] == [REF]
    assert any("forged, or damaged" in reason for reason in catalogue.rejected)
    assert any("which is not trusted" in reason for reason in catalogue.rejected)


def test_hostile_entries_do_not_block_others(organisation: Make, tmp_path: Path) -> None:
    north, south = two(organisation)
    files = random_files(tmp_path / "files", a=1000)
    entry = north.share(files)
    other = north.share(random_files(tmp_path / "other", b=1000), name="a-nested")
    nested = north.records.keep_document(b"[" * 1_000_000, public=True)
    north.publish(replace(other, preview=nested).to_dict())
    north.publish(replace(entry, name="b-half", description="\ud800").to_dict())
    seed = {"info_hash": entry.info_hash, "address": "a..b:1"}
    north.records.write(sign(load_key(north.folder.key), SEED, seed), "seeds", "wrong.json")
    north.start()
    south.start()
    south.ask("north/a-nested@1")
    south.ask(REF)
    assert not south.wait_until("north/a-nested@1", "failed").retryable
    south.wait_until(REF, "fetched")
    (catalogue,) = south.records.catalogues()
    assert [each.entry.name for each in catalogue.datasets] == ["a-nested", "numbers"]
    assert "half of a surrogate pair" in "".join(catalogue.rejected)
    assert "address is 'a..b:1', expected host:port" in "".join(catalogue.rejected)


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


def test_preview_path_traversal_is_refused(organisation: Make, tmp_path: Path) -> None:
    north, south = two(organisation)
    files = random_files(tmp_path / "files", a=1000)
    paths = ("../../up.parquet", "/etc/up.parquet", "table/.up.parquet", "table/manifest.json", "dataset.json")
    for version, path in enumerate(paths, 1):
        wrong = {"files": [{"path": path, "size_bytes": 1000, "sha256": "0" * 64}]}
        north.share(files, version=version, preview=wrong)
    north.start()
    south.start()
    for version in range(1, len(paths) + 1):
        south.ask(f"north/numbers@{version}")
    for version, path in enumerate(paths, 1):
        dataset = south.records.find(DatasetRef.parse(f"north/numbers@{version}"))
        assert dataset is not None
        with pytest.raises(BadInput, match=re.escape(path)):
            wait_for(lambda dataset=dataset: south.records.preview(dataset))  # type: ignore[misc]
    transfer = south.wait_until("north/numbers@5", "failed")
    assert not transfer.retryable
    assert not (south.home / "store" / "_datasets").exists()


def test_torrent_differing_from_preview_is_refused(organisation: Make, tmp_path: Path) -> None:
    north, south = two(organisation)
    files = random_files(tmp_path / "files", a=1000)
    entry = north.share(files)
    other = north.share(random_files(tmp_path / "other", b=1000), name="other")
    north.publish(replace(entry, torrent=other.torrent, version=2).to_dict())
    north.publish(replace(entry, torrent=other.torrent, info_hash=other.info_hash, version=3).to_dict())
    north.start()
    south.start()
    for version, reason in {2: "has the info hash", 3: "names other files or sizes"}.items():
        south.ask(f"north/numbers@{version}")
        transfer = south.wait_until(f"north/numbers@{version}", "failed")
        assert reason in str(transfer.error)


def test_a_peer_with_wrong_data_is_dropped_and_named(organisation: Make, tmp_path: Path) -> None:
    north, south = two(organisation)
    liar = organisation("liar")
    liar.trust(north, south)
    south.trust(liar)
    files = random_files(tmp_path / "files", a=4_000_000)
    entry = north.share(files)
    liar.share(files)
    (copy,) = (liar.folder.data(liar.folder.settings()) / entry.info_hash).rglob("a.parquet")
    content = bytearray(copy.read_bytes())
    content[2_000_000:2_100_000] = bytes(100_000)
    copy.unlink()
    copy.write_bytes(content)
    # The liar's own libtorrent would notice.
    patch = tmp_path / "patch" / "sitecustomize.py"
    patch.parent.mkdir()
    patch.write_text(
        "import libtorrent as lt\nreal = lt.session\n"
        "lt.session = lambda settings: real({**settings, 'disable_hash_checks': True})\n"
    )
    liar.start(patch.parent)
    south.write_settings(stall_s=8)
    north.serve_catalogue()
    south.start()
    south.ask(REF)
    transfer = south.wait_until(REF, "failed")
    assert f"liar at {liar.address}:6881 was dropped, since it sent wrong data" in str(transfer.error)
    north.start()
    south.ask(REF)
    south.wait_until(REF, "fetched")
    assert same_files(south.fetched(REF), files)


def test_killed_daemon_resumes_transfers(organisation: Make, tmp_path: Path) -> None:
    north, south = two(organisation, download_mbit_s=40)
    files = random_files(tmp_path / "files", a=30_000_000, b=20_000_000)
    north.share(files)
    north.start()
    south.start()
    south.ask(REF)
    wait_for(lambda: (t := south.transfer(REF)) and t.done_bytes > 25_000_000, south.log.read_text, 60)
    south.kill()
    south.start()
    south.wait_until(REF, "fetched", timeout_s=60)
    assert same_files(south.fetched(REF), files)
    sent = next(iter(north.records.transfers().values())).uploaded_bytes
    assert sent < 1.5 * 50_000_000  # what had come is not sent again


def test_second_daemon_of_a_store_is_refused(organisation: Make) -> None:
    north = organisation("north")
    north.start()
    other = organisation("other", store=north.store)
    other.start()
    assert other.daemon is not None and other.daemon.wait(60) == 1
    assert "sharing daemon: north on " in other.log.read_text()
    assert "one daemon serves a store: end that one first" in other.log.read_text()


def test_vanished_peers_fail_the_transfer_and_a_second_request_resumes_it(organisation: Make, tmp_path: Path) -> None:
    north, south = two(organisation, download_mbit_s=20, stall_s=12)
    files = random_files(tmp_path / "files", a=20_000_000)
    north.share(files)
    north.start()
    south.start()
    south.ask(REF)
    wait_for(lambda: (t := south.transfer(REF)) and t.done_bytes > 5_000_000, south.log.read_text, 60)
    north.kill()
    transfer = south.wait_until(REF, "failed", timeout_s=60)
    assert "no data was received for 12 s at" in str(transfer.error)
    assert f"north at {north.address}:6881" in str(transfer.error)
    assert transfer.retryable
    north.start()
    south.ask(REF)
    south.wait_until(REF, "fetched", timeout_s=60)
    assert same_files(south.fetched(REF), files)


def test_too_large_data_set_is_not_started(organisation: Make, tmp_path: Path) -> None:
    north, south = two(organisation, disk_gb=0.001)
    north.share(random_files(tmp_path / "files", a=2_000_000))
    north.start()
    south.start()
    south.ask(REF)
    transfer = south.wait_until(REF, "failed")
    assert "more than disk_gb = 0.001 allows" in str(transfer.error)
    south.kill()
    free_gb = shutil.disk_usage(south.home).free // 10**9
    south.write_settings(disk_gb=1, free_gb=free_gb + 10)
    south.start()
    south.ask(REF)
    transfer = wait_for(lambda: (t := south.transfer(REF)) and "free_gb" in str(t.error) and t)
    assert "free some space" in str(transfer.error)
    assert transfer.retryable


def test_full_disk_fails_the_transfer_and_a_second_request_resumes_it(
    organisation: Make, tmp_path: Path, small_disk: Path
) -> None:
    north, south = two(organisation, download_mbit_s=16, free_gb=0, data=str(small_disk))
    files = random_files(tmp_path / "files", a=10_000_000)
    north.share(files)
    north.start()
    south.start()
    south.ask(REF)
    wait_for(lambda: (t := south.transfer(REF)) and t.done_bytes > 1_000_000, south.log.read_text, 60)
    other = small_disk / "other"
    subprocess.run(["dd", "if=/dev/zero", f"of={other}", "bs=64k", "status=none"], check=False)  # until it is full
    transfer = south.wait_until(REF, "failed")
    assert "No space left on device; free some space" in str(transfer.error)
    assert transfer.retryable
    south.ask(REF)
    transfer = wait_for(lambda: (t := south.transfer(REF)) and "it needs 0.0" in str(t.error) and t)
    other.unlink()
    south.ask(REF)
    south.wait_until(REF, "fetched")
    assert same_files(south.fetched(REF), files)


def test_fetched_data_set_is_seeded_if_configured_until_unpublished(organisation: Make, tmp_path: Path) -> None:
    north, south = two(organisation, seeding="always")
    east = organisation("east")
    for one, other in ((north, east), (east, north), (south, east), (east, south)):
        one.trust(other)
    files = random_files(tmp_path / "files", a=2_000_000)
    north.share(files)
    north.start()
    south.start()
    south.ask(REF)
    south.wait_until(REF, "seeding")
    north.kill()
    east.start()
    east.ask(REF)
    east.wait_until(REF, "fetched")
    assert same_files(east.fetched(REF), files)
    south.records.withdraw(south.records.requests()[0].ref)
    wait_for(lambda: not list(south.records.all("seeds")), south.log.read_text)
    north.start()
    north.records.remove("published", "numbers@1.json")
    wait_for(lambda: not list(north.records.all("seeds")), north.log.read_text)
    assert not list(north.folder.data(north.folder.settings()).iterdir())
