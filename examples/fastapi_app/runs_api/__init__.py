"""An HTTP service on runfacts with accounts of its own: it submits, shows and cancels runs."""
