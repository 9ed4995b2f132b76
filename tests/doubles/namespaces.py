"""What starts a program in namespaces of its own."""

from __future__ import annotations

import os

USER = () if os.geteuid() == 0 else ("--user", "--map-root-user")
OWN_NAMESPACE = ("unshare", *USER, "--pid", "--fork", "--kill-child", "--mount-proc")
OWN_TIME_NAMESPACE = ("unshare", *USER, "--time", "--fork", "--kill-child")
"""Another scope in which clocks and numbers are the same."""
