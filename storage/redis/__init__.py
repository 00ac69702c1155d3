"""The store on Redis or Valkey: a primary with replicas, or a cluster."""
