"""The soak, a minute of it: every fault of tests/soak once, under load, and an even balance.

It takes a minute because the faults need their time to be seen and repaired one after the other; `make soak` runs an hour.
To see it fail: without the lease in settle.sql's conditions a stopped worker settles what was given to others; without the
settler keeping its outcomes, a restart of the server loses them.
"""

from __future__ import annotations

import pytest

from tests.soak.__main__ import main


def test_a_minute_of_faults_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--seconds", "56", "--rate", "200", "--every", "3", "--seed", "1"])
    told = capsys.readouterr().out
    assert code == 0, told
    assert "\neven\n" in told
