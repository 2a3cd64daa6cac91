//! Answers on their way: from the scheduler's updates to one JSON object, or to a stream of events.
//!
//! A [`Shape`] says what an answer looks like; it is told of every piece, and is asked for events or for the whole. What
//! carries updates to it is the same for all shapes.

use crate::serve::batch::job::RequestEvent;
use crate::serve::batch::queue::Updates;
use crate::serve::http::error::{ApiError, json_response, typed};
use crate::session::generation::{FinishReason, GeneratedToken};
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use hyper::body::Frame;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;

/// How long a stream is silent before it says that it still lives.
const SILENCE: Duration = Duration::from_secs(10);
/// How long a client may take to take an event.
const PATIENCE: Duration = Duration::from_secs(60);
/// Events that wait for a client.
const EVENTS: usize = 64;

/// What an answer took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Ids of the prompts.
    pub(crate) prompt: usize,
    /// Those of them that did not have to be read.
    pub(crate) reused: usize,
    /// Ids written.
    pub(crate) written: usize,
}

impl Usage {
    pub(crate) fn json(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.written,
            "total_tokens": self.prompt + self.written,
            "prompt_tokens_details": { "cached_tokens": self.reused },
        })
    }
}

/// An event of a stream.
pub(crate) struct Event {
    /// Its name, where it has one.
    pub(crate) name: Option<&'static str>,
    pub(crate) data: Value,
}

impl Event {
    pub(crate) fn new(data: Value) -> Event {
        Event { name: None, data }
    }

    fn bytes(&self) -> Bytes {
        let name = self.name.map_or_else(String::new, |name| format!("event: {name}\n"));
        Bytes::from(format!("{name}data: {}\n\n", self.data))
    }
}

/// What an answer looks like.
pub(crate) trait ResponseBody: Send {
    /// What a stream begins with.
    fn begin(&mut self) -> Vec<Event>;
    /// Takes text number `index` a piece further, and gives what a stream says of it.
    fn piece(&mut self, index: usize, piece: &GeneratedToken) -> Vec<Event>;
    /// What a stream ends with.
    fn end(&mut self, usage: &Usage) -> Vec<Event>;
    /// The whole answer.
    fn whole(&mut self, usage: &Usage) -> Value;
    /// What comes after the last event, for clients that wait for it.
    fn farewell(&self) -> &'static str {
        "data: [DONE]\n\n"
    }
}

/// An answer that is being written.
pub(crate) struct PendingResponse {
    pub(crate) shape: Box<dyn ResponseBody>,
    pub(crate) updates: Updates,
    /// Texts that have not come to their end.
    pub(crate) left: usize,
    /// Texts that share a prompt: what the first of them reuses counts.
    pub(crate) texts: usize,
    pub(crate) usage: Usage,
}

impl PendingResponse {
    /// The response, in one piece or in many.
    pub(crate) async fn response(self, stream: bool) -> Result<Response, ApiError> {
        if stream { Ok(self.stream()) } else { self.whole().await }
    }

    async fn whole(mut self) -> Result<Response, ApiError> {
        while self.left > 0 {
            let update = self.updates.recv().await;
            self.take(update)?;
        }
        Ok(json_response(StatusCode::OK, &self.shape.whole(&self.usage)))
    }

    fn stream(self) -> Response {
        let (events, receiver) = mpsc::channel(EVENTS);
        tokio::spawn(self.send(events));
        let mut response = typed(StatusCode::OK, "text/event-stream", Body::new(Events(receiver)));
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        // What stands between may not save events up.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    }

    /// Sends events until the answer is whole or nobody takes them any more.
    async fn send(mut self, events: mpsc::Sender<Bytes>) {
        let mut due = self.shape.begin();
        loop {
            for event in due {
                if !send(&events, event.bytes()).await {
                    return;
                }
            }
            if self.left == 0 {
                break;
            }
            let update = tokio::select! {
                () = events.closed() => return,
                update = tokio::time::timeout(SILENCE, self.updates.recv()) => update,
            };
            due = match update {
                Ok(update) => match self.take(update) {
                    Ok(due) => due,
                    Err(refusal) => {
                        send(&events, Event::new(refusal.json()).bytes()).await;
                        return;
                    }
                },
                Err(_) => {
                    if !send(&events, Bytes::from_static(b": still here\n\n")).await {
                        return;
                    }
                    Vec::new()
                }
            };
        }
        for event in self.shape.end(&self.usage) {
            if !send(&events, event.bytes()).await {
                return;
            }
        }
        send(&events, Bytes::from_static(self.shape.farewell().as_bytes())).await;
    }

    /// Takes an update, and gives what a stream says of it.
    fn take(&mut self, update: Option<(usize, RequestEvent)>) -> Result<Vec<Event>, ApiError> {
        match update {
            Some((index, RequestEvent::Reused(count))) => {
                if index.is_multiple_of(self.texts) {
                    self.usage.reused += count;
                }
                Ok(Vec::new())
            }
            Some((index, RequestEvent::Echo(piece))) => Ok(self.shape.piece(index, &piece)),
            Some((index, RequestEvent::Piece(piece))) => {
                self.left -= usize::from(piece.end.is_some());
                self.usage.written +=
                    usize::from(piece.id.is_some() && piece.end != Some(FinishReason::EndOfText));
                Ok(self.shape.piece(index, &piece))
            }
            Some((_, RequestEvent::Failed(failure))) => Err(failure.into()),
            None => Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down")),
        }
    }
}

/// Whether somebody took it.
async fn send(events: &mpsc::Sender<Bytes>, event: Bytes) -> bool {
    matches!(tokio::time::timeout(PATIENCE, events.send(event)).await, Ok(Ok(())))
}

/// Events as the body of a response.
struct Events(mpsc::Receiver<Bytes>);

impl HttpBody for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|event| event.map(|bytes| Ok(Frame::data(bytes))))
    }
}
