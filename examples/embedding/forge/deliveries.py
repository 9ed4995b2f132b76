"""What Forge keeps in a table with SQLAlchemy's ORM: which deliveries of its webhook it has dealt with."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Tables(DeclarativeBase):
    """Forge's mapped tables."""


class Delivery(Tables):
    """A push that somebody's git host has delivered. It delivers again when it is not sure, under the same id."""

    __tablename__ = "deliveries"

    delivery_id: Mapped[str] = mapped_column(primary_key=True)
    build_id: Mapped[str]
