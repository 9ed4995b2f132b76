"""A /proc as it is seen after the machine has been started again: everything as it is, but of another boot."""

from __future__ import annotations

from runfacts.infrastructure.processes.procfs import ProcFs

OTHER_BOOT = "00000000-0000-4000-8000-000000000000"


class AnotherBoot(ProcFs):
    """A procfs of another boot. A machine cannot be started again within a test; its /proc can say so."""

    def boot_id(self) -> str:
        """See ProcFs."""
        return OTHER_BOOT
