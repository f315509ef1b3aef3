"""The tables of the newest revision, as PostgreSQL's catalog describes them: what ``check`` compares with."""
