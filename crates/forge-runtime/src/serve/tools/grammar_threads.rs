//! Threads that compile grammars.
//!
//! Compiling recurses deeply and its cost depends on the request, so it runs on a thread with a large stack of its own.
//! Few run at a time, a bounded number of requests wait for them, and no other request does.

use crate::serve::http::error::ApiError;
use axum::http::StatusCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

/// Grammars that are compiled at a time.
const RUNNING: usize = 2;
/// Requests that may wait for a thread, or have one.
const PLACES: usize = 16;
/// How long a request waits for a thread.
const WAIT: Duration = Duration::from_secs(10);
/// How long a request may take once it has its thread. [`crate::serve::tools::grammar_limits`] keeps almost all well below it.
const TIME: Duration = Duration::from_secs(5);
/// Bytes of a thread's stack. The largest schema that is compiled needs less than 64 MiB; pages that are not used take no memory.
const STACK: usize = 256 << 20;

/// Runs requests with grammars, a few at a time.
pub(crate) struct GrammarThreads {
    places: Arc<Semaphore>,
    running: Arc<Semaphore>,
}

impl Default for GrammarThreads {
    fn default() -> GrammarThreads {
        GrammarThreads {
            places: Arc::new(Semaphore::new(PLACES)),
            running: Arc::new(Semaphore::new(RUNNING)),
        }
    }
}

impl GrammarThreads {
    /// Runs `work` on a thread of its own, after `prepare`, which may take any time.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        prepare: impl FnOnce() + Send + 'static,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let busy = || {
            let message = "too many grammars and schemas are waiting to be compiled; try again later";
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code("grammar_queue_full").retry_after(2)
        };
        let failed = || {
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "this request made a part of the server fail")
        };
        let _place = self.places.clone().try_acquire_owned().map_err(|_| busy())?;
        let permit = match timeout(WAIT, self.running.clone().acquire_owned()).await {
            Ok(Ok(permit)) => permit,
            _ => return Err(busy()),
        };
        let (begin, begun) = oneshot::channel();
        let (finish, finished) = oneshot::channel();
        std::thread::Builder::new()
            .name("grammar".to_owned())
            .stack_size(STACK)
            .spawn(move || {
                // A thread cannot be stopped: it counts as running until it ends, even after its request has been answered.
                let _permit = permit;
                prepare();
                let _ = begin.send(());
                let _ = finish.send(work());
            })
            .map_err(|_| busy())?;
        begun.await.map_err(|_| failed())?;
        match timeout(TIME, finished).await {
            Ok(done) => done.map_err(|_| failed())?,
            Err(_) => Err(ApiError::new(
                StatusCode::BAD_REQUEST,
                format!("the grammar takes longer than {} s to compile; simplify it", TIME.as_secs()),
            )
            .code("grammar_too_complex")),
        }
    }
}
