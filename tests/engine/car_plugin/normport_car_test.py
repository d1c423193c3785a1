"""The entry point of the test platform; on when ``NORMPORT_CAR_TEST`` is set."""

import os


def platform() -> str | None:
    on = os.environ.get("NORMPORT_CAR_TEST")
    return "normport_car_test_platform.CarTestPlatform" if on else None
