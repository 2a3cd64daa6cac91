//! HTTP: connections, routes, authentication, errors and metrics.

pub(crate) mod auth;
pub(crate) mod connections;
pub(crate) mod error;
pub(crate) mod fields;
pub(crate) mod listener;
pub(crate) mod metrics;
pub(crate) mod routes;
pub(crate) mod write_timeout;
