"""The catalog on Redis or Valkey."""
