//! Stopping a server.

use std::sync::Arc;
use tokio::sync::Notify;

/// Stops a server from within the program, like Ctrl-C.
#[derive(Clone, Default)]
pub struct Stop(pub(super) Arc<Notify>);

impl Stop {
    /// Finishes running requests and stops the server; a second call stops at once.
    pub fn stop(&self) {
        self.0.notify_one();
    }
}
