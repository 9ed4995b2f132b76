"""A small job runner on runfacts: jobs of a file, in the order of what they need, each of them once for each batch."""
