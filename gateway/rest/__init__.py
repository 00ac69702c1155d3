"""The HTTP interface: operations, routes, OpenAPI, pages."""
