"""Lists in pages: `limit` and `after`, and a Link header (RFC 8288) to the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar
from urllib.parse import urlencode

from fastapi import Query, Request, Response

from supervisor.errors import NotFoundError

MAX_PAGE = 1000
# None: all rows.
Limit = Annotated[int | None, Query(ge=1, le=MAX_PAGE)]
# The key of the last row that the reader has.
After = Annotated[str, Query(max_length=200)]
Row = TypeVar("Row")


def page(
    rows: Sequence[Row], key: Callable[[Row], str], after: str, limit: int | None, request: Request, response: Response
) -> list[Row]:
    """Return the rows after the one whose `key` is `after`, at most `limit`. Raises NotFoundError if it is gone."""
    begin = 0
    if after:
        begin = next((number + 1 for number, row in enumerate(rows) if key(row) == after), 0)
        if not begin:
            raise NotFoundError(f"the list has no {after!r} any more: read it from its beginning")
    found = list(rows[begin : begin + limit] if limit else rows[begin:])
    if found and begin + len(found) < len(rows):
        query = {**request.query_params, "after": key(found[-1]), "limit": limit}
        response.headers["link"] = f'<{request.url.path}?{urlencode(query)}>; rel="next"'
    return found
