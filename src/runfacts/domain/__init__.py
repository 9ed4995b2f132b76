"""What a run is: facts, transitions, decisions. Pure: no SQL, no clock, no thread, no I/O."""
