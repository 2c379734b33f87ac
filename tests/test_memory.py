"""What no machine can hold is refused before it is allocated."""

import pytest

from xrep.errors import UserError
from xrep.memory import check_memory, machine_memory, size_of


def test_what_fits_is_allowed_and_what_does_not_is_one_line() -> None:
    present = machine_memory()
    assert 10**8 < present < 10**15
    check_memory(present, "a queue", cure="lower `queue_size`")
    with pytest.raises(UserError, match=r"^a queue needs .* of memory, and this machine has .*; lower `queue_size`$"):
        check_memory(present + 1, "a queue", cure="lower `queue_size`")


def test_sizes_are_readable() -> None:
    assert [size_of(count) for count in (12, 2_500_000, 12_500_000_000, 10**13)] == [
        "12 bytes", "2.5 MB", "12.5 GB", "10.0 TB"
    ]  # fmt: skip
    assert size_of(10**40) == "over 1,000,000 PB"
