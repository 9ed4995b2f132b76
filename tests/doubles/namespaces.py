"""What starts a program in a PID namespace of its own."""

from __future__ import annotations

import os

USER = () if os.geteuid() == 0 else ("--user", "--map-root-user")
OWN_NAMESPACE = ("unshare", *USER, "--pid", "--fork", "--kill-child", "--mount-proc")
