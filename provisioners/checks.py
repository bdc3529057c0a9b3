"""What the clouds' checks share. They launch nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from provisioners.base import DeniedError, Finding, ProvisionerError
from provisioners.calls import Deadline


class CloudChecks:
    """One run over all regions. Each finding is one sentence; a failed one says what to do."""

    def run(self, deadline: Deadline) -> Sequence[Finding]:
        """Never raises for what it finds; an unreachable cloud is a finding, too."""
        credentials = self._try("credentials", lambda: self._credentials(deadline))
        return [credentials, *(self._further(deadline) if credentials.ok else ())]

    def _credentials(self, deadline: Deadline) -> str:
        raise NotImplementedError

    def _further(self, deadline: Deadline) -> Iterable[Finding]:
        """Return what can only be checked with credentials."""
        raise NotImplementedError

    def _try(self, what: str, ask: Callable[[], str]) -> Finding:
        try:
            return Finding(what, ok=True, message=ask())
        except ProvisionerError as error:
            return Finding(what, ok=False, message=self._explain(error))

    def _explain(self, error: ProvisionerError) -> str:
        return str(error)


def check_disk(cloud: str, disk_gb: int, image: str, image_gb: int) -> None:
    """Raise ProvisionerError if the cloud's `disk_gb` is less than what the image needs."""
    if disk_gb < image_gb:
        raise ProvisionerError(
            f"image {image} needs a disk of {image_gb} GB, and {cloud}.disk_gb is {disk_gb}: set {cloud}.disk_gb = "
            f"{image_gb}, or more"
        )


def read_all(reads: Iterable[tuple[str, Callable[[], object]]], lacks: str) -> None:
    """Try what each name stands for. Raises DeniedError with the names of those that are denied, and why."""
    missing = []
    for name, ask in reads:
        try:
            ask()
        except DeniedError as error:
            missing.append((name, str(error)))
    if missing:
        raise DeniedError(f"{lacks} {', '.join(name for name, _ in missing)}: {missing[0][1]}")
