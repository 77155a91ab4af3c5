"""Sizes for people, in the units of the configuration's keys, on the page and in the tools alike."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def shown_size(size_bytes: float) -> str:
    """1.9 MiB; at least three digits count."""
    size, unit = float(size_bytes), "B"
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if size >= 100 or unit == "B" else f"{size:.1f} {unit}"
