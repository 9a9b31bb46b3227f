"""Settings of data set sharing: a folder with ``settings.toml``, this organisation's key, and the trusted keys.

The folder is ``[hops] sharing``, on the machines that run the daemon and publish. Other machines read only the store.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from airflow_hops.core.errors import BadInput
from airflow_hops.core.json_fields import CheckedFields
from airflow_hops.core.json_files import read_json
from airflow_hops.core.names import suggestion
from airflow_hops.core.processes.files import write_atomically
from airflow_hops.extensions.sharing.core.entries import check_name, split_address
from airflow_hops.extensions.sharing.core.statements import check_public_text

SETTINGS_NAME, KEY_NAME, TRUSTED_NAME = "settings.toml", "key.pem", "trusted"
_SEEDING = ("never", "in_use", "always")


@dataclass(frozen=True)
class SharingSettings(CheckedFields):
    """Settings in ``settings.toml``.

    Attributes:
        organisation: Name of this organisation.
        listen: Address and port at which the daemon waits for peers.
        address: ``host:port`` at which others reach it; announced with what is shared. Empty: that of ``listen``.
        data: Folder of shared and fetched data sets. Empty: ``data`` beside the settings.
        upload_mbit_s: Limit of the rate to peers, in megabits per second; 0 for none.
        download_mbit_s: Limit of the rate from peers.
        disk_gb: Maximum size of fetched data sets on the daemon's disk, in gigabytes.
        free_gb: Disk space that remains free.
        seeding: Whether fetched data sets are given to others: ``never``; ``in_use``, until ``in_use_days`` after a
            task has last asked for them; or ``always``.
        exchange_s: Seconds between requests for the catalogues of others.
        stall_s: Seconds without a peer after which a download fails.
        target_delay_ms: Delay that a transfer may add to a queue on its way before it gives way to other traffic.
    """

    organisation: str
    listen: str = "127.0.0.1:6881"
    address: str = ""
    data: str = ""
    upload_mbit_s: float = 0.0
    download_mbit_s: float = 0.0
    disk_gb: float = 100.0
    free_gb: float = 1.0
    seeding: Literal["never", "in_use", "always"] = "never"
    in_use_days: float = 30.0
    exchange_s: float = 60.0
    stall_s: float = 600.0
    target_delay_ms: int = 35

    @property
    def announced(self) -> str:
        """Returns the address that is announced."""
        return self.address or self.listen


@dataclass(frozen=True)
class Trusted(CheckedFields):
    """An organisation whose key is trusted.

    Attributes:
        organisation: The name by which it is known here.
        key: Its public key in Base64.
        catalogue: Address of the folder with its ``catalogue.json``.
        addresses: Hosts from which it may connect; by default that of the catalogue.
    """

    organisation: str
    key: str
    catalogue: str
    addresses: Sequence[str] = ()

    @property
    def hosts(self) -> tuple[str, ...]:
        """Returns the hosts from which it may connect."""
        return tuple(self.addresses) or (urlsplit(self.catalogue).hostname or "",)


@dataclass(frozen=True)
class SharingFolder:
    """The folder of the settings."""

    path: Path

    @property
    def key(self) -> Path:
        """Returns the path of the private key."""
        return self.path / KEY_NAME

    def settings(self) -> SharingSettings:
        """Reads the settings.

        Raises:
            BadInput: the file is missing, or a setting is invalid.
        """
        file = self.path / SETTINGS_NAME
        try:
            values = tomllib.loads(file.read_text())
        except FileNotFoundError:
            raise BadInput(
                f"{file}: not found; create it with 'airflow hops datasets keys --create --organisation NAME'"
            ) from None
        except ValueError as error:
            raise BadInput(f"{file}: {error}") from None
        known = [each.name for each in fields(SharingSettings) if each.name != "more"]
        for name in values:
            if name not in known:
                raise BadInput(f"{file}: there is no setting {name!r}" + suggestion(name, known))
        try:
            made = SharingSettings.from_dict(values)
            check_name("organisation", made.organisation)
            split_address(made.listen)
            split_address(made.announced)
            if made.seeding not in _SEEDING:
                raise ValueError(f"seeding is {made.seeding!r}, expected one of {', '.join(_SEEDING)}")
            for name, value in values.items():
                if isinstance(value, int | float) and not 0 <= value < 2**31:
                    raise ValueError(f"{name} is {value}, expected a number from 0 to {2**31}")
        except (TypeError, ValueError) as error:
            raise BadInput(f"{file}: {error}") from None
        return made

    def data(self, settings: SharingSettings) -> Path:
        """Returns the folder of shared and fetched files."""
        return Path(settings.data or self.path / "data").expanduser().absolute()

    def trusted(self) -> dict[str, Trusted]:
        """Returns the trusted organisations by name.

        Raises:
            BadInput: a file does not describe one.
        """
        results = {}
        for file in sorted((self.path / TRUSTED_NAME).glob("*.json")):
            try:
                made = Trusted.from_dict(read_json(file))
            except TypeError as error:
                raise BadInput(f"{file}: {error}") from None
            results[made.organisation] = made
        return results

    def trust(self, trusted: Trusted) -> None:
        """Adds or replaces a trusted organisation.

        Raises:
            BadInput: name, key or address is invalid.
        """
        try:
            check_name("organisation", trusted.organisation)
            scheme = urlsplit(trusted.catalogue).scheme
            if scheme not in ("http", "https") or not urlsplit(trusted.catalogue).hostname:
                raise ValueError(f"catalogue is {trusted.catalogue!r}, expected an address http:// or https://")
        except ValueError as error:
            raise BadInput(str(error)) from None
        check_public_text(trusted.key)
        others = [name for name, each in self.trusted().items() if each.key == trusted.key]
        if others not in ([], [trusted.organisation]):
            raise BadInput(f"key {trusted.key}: it is trusted already, as that of {others[0]!r}")
        write_atomically(self._file(trusted.organisation), json.dumps(trusted.to_dict(), indent=1).encode())

    def distrust(self, organisation: str) -> None:
        """Removes a trusted organisation. Raises BadInput if there is none of the name."""
        if organisation not in (there := self.trusted()):
            raise BadInput(f"organisation {organisation!r} is not trusted; trusted are {', '.join(there) or 'none'}")
        self._file(organisation).unlink()

    def _file(self, organisation: str) -> Path:
        return self.path / TRUSTED_NAME / f"{organisation}.json"
