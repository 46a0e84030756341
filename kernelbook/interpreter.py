def install():
    """Placeholder until the interpreter is built."""
