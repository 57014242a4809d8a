#!/usr/bin/env bash
# Run the tests of those folders that have any, with an environment's pytest.
#
#   run_tests.sh VENV FOLDER... [-- PYTEST_ARGUMENT...]
#   run_tests.sh --any FOLDER...      only tell, by the exit status, whether there are tests
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$1
shift
folders=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    if [ -n "$(find "$1" -name 'test_*.py' -print -quit 2>/dev/null)" ]; then
        folders+=("$1")
    else
        echo "$1: no tests yet, skipped"
    fi
    shift
done
[ $# -eq 0 ] || shift

if [ "$venv" = --any ]; then
    [ ${#folders[@]} -gt 0 ]
    exit
fi
[ ${#folders[@]} -gt 0 ] || exit 0

echo "== $venv/bin/pytest ${folders[*]} $*"
status=0
"$venv/bin/python" -m pytest --timeout "${TEST_TIMEOUT:-600}" --durations 5 "${folders[@]}" "$@" ||
    status=$?
# A selection by -k or -m may leave a folder without tests.
if [ $status -eq 5 ] && [ $# -gt 0 ]; then status=0; fi
exit $status
