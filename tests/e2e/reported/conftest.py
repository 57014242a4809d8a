"""One delivery for each module of tests, and for each class what arrived of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.e2e.reported.whole_way import Arrived, Delivery
    from tests.servers.weave_process import WeaveServer


@pytest.fixture(scope="module")
def delivery(
    request: pytest.FixtureRequest,
    weave_server: WeaveServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Delivery:
    from tests.e2e.reported import whole_way

    return whole_way.deliver(request.module, weave_server, tmp_path_factory.mktemp("store"))


@pytest.fixture
def arrived(request: pytest.FixtureRequest, delivery: Any) -> Arrived:
    found: Arrived = delivery.of(request.cls.__name__)
    return found
