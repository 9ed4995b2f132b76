"""What tests of runfacts and of its users stand on: servers, ledgers, clocks, steps, the pytest plugin."""
