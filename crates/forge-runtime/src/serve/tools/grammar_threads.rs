//! Threads that compile grammars.
//!
//! Compilation recurses deeply and its cost depends on the request, so it runs on a separate thread with a
//! large stack. Few run at a time, and a bounded number of requests wait for them. Other requests are not
//! affected.

use crate::serve::http::error::ApiError;
use axum::http::StatusCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

/// Maximum concurrent compilations.
const RUNNING: usize = 2;
/// Maximum requests that wait or compile.
const PLACES: usize = 16;
/// How long a request waits for a thread.
const WAIT: Duration = Duration::from_secs(10);
/// Time limit of a compilation. [`crate::serve::tools::grammar_limits`] keeps almost all well below it.
const TIME: Duration = Duration::from_secs(5);
/// Stack size in bytes. The largest schema allowed needs less than 64 MiB; unused pages take no memory.
const STACK: usize = 256 << 20;

/// Limits concurrent grammar compilations.
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
    /// Runs `work` on a new thread after `prepare`, which is not limited in time.
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
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error while processing the request")
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
                // A thread cannot be stopped. It holds its permit until it ends, even after its request has
                // failed.
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
