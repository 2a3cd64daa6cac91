//! Open connections, and which of them to close when there are too many.
//!
//! A connection is idle until a request's head has arrived, then receiving until the end of its body, then
//! active until the end of the response. An active connection is never closed for another.

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Request, Response};
use hyper::body::{Frame, SizeHint};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::sync::Notify;

const IDLE: u8 = 0;
const RECEIVING: u8 = 1;
const ACTIVE: u8 = 2;

/// The state of a connection.
#[derive(Default)]
pub(crate) struct State {
    phase: AtomicU8,
    close: Notify,
}

/// All open connections.
#[derive(Default)]
pub(crate) struct Connections {
    open: Mutex<Open>,
}

/// Connections by number, in order of arrival.
#[derive(Default)]
struct Open {
    states: BTreeMap<u64, Arc<State>>,
    next: u64,
}

/// An open connection. Dropping it removes it.
pub(crate) struct Connection {
    connections: Arc<Connections>,
    number: u64,
    state: Arc<State>,
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a connection. If `most` are open, the oldest idle one is closed, else the oldest receiving
    /// one. If all are active, up to `reserve` more are allowed; then `None` is returned.
    pub(crate) fn open(self: &Arc<Self>, most: usize, reserve: usize) -> Option<Connection> {
        let mut open = self.lock();
        if open.states.len() >= most {
            let oldest = |phase: u8| {
                open.states
                    .iter()
                    .find(|(_, state)| state.phase.load(Relaxed) == phase)
                    .map(|(&number, _)| number)
            };
            match oldest(IDLE).or_else(|| oldest(RECEIVING)) {
                Some(closed) => open.states.remove(&closed)?.close.notify_one(),
                None if open.states.len() >= most + reserve => return None,
                None => {}
            }
        }
        let number = open.next;
        open.next += 1;
        let state = Arc::new(State::default());
        open.states.insert(number, state.clone());
        drop(open);
        Some(Connection { connections: self.clone(), number, state })
    }

    /// The number of open connections.
    pub(crate) fn count(&self) -> usize {
        self.lock().states.len()
    }
}

impl Connection {
    /// Waits until the connection has to be closed.
    pub(crate) async fn closed(&self) {
        self.state.close.notified().await;
    }

    pub(crate) fn state(&self) -> Arc<State> {
        self.state.clone()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.connections.lock().states.remove(&self.number);
    }
}

impl State {
    /// Marks the connection as receiving this request.
    pub(crate) fn receive<B>(self: &Arc<Self>, request: Request<B>) -> Request<Body>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        self.phase.store(RECEIVING, Relaxed);
        request.map(|body| Body::new(Phased::new(Body::new(body), self.clone(), RECEIVING, ACTIVE)))
    }

    /// Marks the connection as active until the response ends.
    pub(crate) fn track_response(self: &Arc<Self>, response: Response<Body>) -> Response<Body> {
        self.phase.store(ACTIVE, Relaxed);
        response.map(|body| Body::new(Phased::new(body, self.clone(), ACTIVE, IDLE)))
    }
}

/// A body that changes the connection's phase at its end.
struct Phased {
    body: Body,
    state: Arc<State>,
    phase: u8,
    next: u8,
}

impl Phased {
    fn new(body: Body, state: Arc<State>, phase: u8, next: u8) -> Phased {
        let phased = Phased { body, state, phase, next };
        if phase == RECEIVING && phased.body.is_end_stream() {
            phased.end();
        }
        phased
    }

    fn end(&self) {
        // A request's body may be dropped after the response was sent.
        let _ = self.state.phase.compare_exchange(self.phase, self.next, Relaxed, Relaxed);
    }
}

impl HttpBody for Phased {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if self.phase == RECEIVING && (self.body.is_end_stream() || matches!(frame, Poll::Ready(None))) {
            self.end();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Phased {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_idle_connection_is_closed() {
        let connections = Arc::new(Connections::default());
        let open: Vec<_> = (0..3).map(|_| connections.open(3, 1).unwrap()).collect();
        let is_open = |index: usize| connections.lock().states.contains_key(&open[index].number);
        open[0].state.phase.store(ACTIVE, Relaxed);
        open[1].state.phase.store(RECEIVING, Relaxed);
        let fourth = connections.open(3, 1).unwrap();
        assert!(is_open(0) && is_open(1) && !is_open(2));
        // A receiving connection is closed if none is idle; an active one never is.
        fourth.state.phase.store(ACTIVE, Relaxed);
        let fifth = connections.open(3, 1).unwrap();
        assert!(is_open(0) && !is_open(1));
        fifth.state.phase.store(ACTIVE, Relaxed);
        // The reserve allows one more.
        let sixth = connections.open(3, 1).unwrap();
        sixth.state.phase.store(ACTIVE, Relaxed);
        assert_eq!(connections.count(), 4);
        assert!(connections.open(3, 1).is_none());
        drop(fifth);
        assert!(connections.open(3, 1).is_some());
    }
}
