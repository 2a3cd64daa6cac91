//! Connections that are open, and which of them to close when there are too many.
//!
//! A connection is idle until the head of a request has come, then it receives, and from the end of the request's body to the
//! end of the response it is answered. One that is answered is never closed for another.

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
const ANSWERED: u8 = 2;

/// What a connection does.
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

/// By their numbers, which count up.
#[derive(Default)]
struct Open {
    states: BTreeMap<u64, Arc<State>>,
    next: u64,
}

/// An open connection, which is forgotten when this is dropped.
pub(crate) struct Connection {
    connections: Arc<Connections>,
    number: u64,
    state: Arc<State>,
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of a connection. If `most` are open, the oldest idle one is closed for it, or else the oldest that receives.
    /// Where all of them are answered there may be `reserve` more; none beyond these.
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

    /// How many are open.
    pub(crate) fn count(&self) -> usize {
        self.lock().states.len()
    }
}

impl Connection {
    /// Waits until it has to be closed.
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
    /// A request whose head has come.
    pub(crate) fn receive<B>(self: &Arc<Self>, request: Request<B>) -> Request<Body>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        self.phase.store(RECEIVING, Relaxed);
        request.map(|body| Body::new(Phased::new(Body::new(body), self.clone(), RECEIVING, ANSWERED)))
    }

    /// The response to it.
    pub(crate) fn answer(self: &Arc<Self>, response: Response<Body>) -> Response<Body> {
        self.phase.store(ANSWERED, Relaxed);
        response.map(|body| Body::new(Phased::new(body, self.clone(), ANSWERED, IDLE)))
    }
}

/// A body at whose end the connection goes from one phase to the next.
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
        // A request's body may be dropped when the response has been sent already.
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
    fn the_oldest_idle_connection_gives_way() {
        let connections = Arc::new(Connections::default());
        let open: Vec<_> = (0..3).map(|_| connections.open(3, 1).unwrap()).collect();
        let is_open = |index: usize| connections.lock().states.contains_key(&open[index].number);
        open[0].state.phase.store(ANSWERED, Relaxed);
        open[1].state.phase.store(RECEIVING, Relaxed);
        let fourth = connections.open(3, 1).unwrap();
        assert!(is_open(0) && is_open(1) && !is_open(2));
        // One that is still receiving gives way when none is idle, and one that is answered never does.
        fourth.state.phase.store(ANSWERED, Relaxed);
        let fifth = connections.open(3, 1).unwrap();
        assert!(is_open(0) && !is_open(1));
        fifth.state.phase.store(ANSWERED, Relaxed);
        // One is in reserve.
        let sixth = connections.open(3, 1).unwrap();
        sixth.state.phase.store(ANSWERED, Relaxed);
        assert_eq!(connections.count(), 4);
        assert!(connections.open(3, 1).is_none());
        drop(fifth);
        assert!(connections.open(3, 1).is_some());
    }
}
