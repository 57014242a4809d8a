from tests.verl.conftest import instrumented as instrumented
from tests.verl.conftest import spans as spans
