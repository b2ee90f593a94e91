"""Whether a schema is new enough for this code.

The other way round it always is: what a release adds to the schema leaves the workers of the previous one alone. So only
what is missing counts. A release whose verbs take or answer more than before has a migration, and be it an empty one, by
which this can be told (tests/compat/test_contract.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from skiplock._version import __version__
from skiplock.core.errors import SchemaError
from skiplock.store.call import Call, Row
from skiplock.store.schema import migrations, render


def required_call(schema: str) -> Call[None]:
    """Raises SchemaError if the schema is of an older skiplock."""

    def read(rows: Sequence[Row]) -> None:
        applied = {row[0] for row in rows}
        missing = [m.name for m in migrations() if m.name not in applied]
        if missing:
            raise SchemaError(
                f"schema {schema} is of an older skiplock than this one, {__version__} (it has no {', '.join(missing)}): "
                "run `skiplock db migrate` first, then start the workers"
            )

    return Call(render("SELECT name FROM skiplock.migrations", schema), (), read)
