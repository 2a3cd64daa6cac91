//! Pending responses: turns the scheduler's events into one JSON object or a stream of server-sent events.
//!
//! A [`ResponseBody`] defines the format: it receives every token and returns events or the complete body.
//! The transport is the same for all formats.

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

/// Interval of keep-alive comments in a stream.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// How long a client may take to accept an event.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Capacity of a stream's event queue.
const EVENTS: usize = 64;

/// Token usage of a response.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Prompt tokens.
    pub(crate) prompt_tokens: usize,
    /// Prompt tokens reused from the prefix cache.
    pub(crate) cached_tokens: usize,
    /// Generated tokens.
    pub(crate) completion_tokens: usize,
}

impl Usage {
    pub(crate) fn json(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": { "cached_tokens": self.cached_tokens },
        })
    }
}

/// A server-sent event.
pub(crate) struct SseEvent {
    /// Its name, if it has one.
    pub(crate) name: Option<&'static str>,
    pub(crate) data: Value,
}

impl SseEvent {
    pub(crate) fn new(data: Value) -> SseEvent {
        SseEvent { name: None, data }
    }

    fn bytes(&self) -> Bytes {
        let name = self.name.map_or_else(String::new, |name| format!("event: {name}\n"));
        Bytes::from(format!("{name}data: {}\n\n", self.data))
    }
}

/// The format of a response.
pub(crate) trait ResponseBody: Send {
    /// The first events of a stream.
    fn begin(&mut self) -> Vec<SseEvent>;
    /// Adds a token to choice `index` and returns the events for it.
    fn push(&mut self, index: usize, piece: &GeneratedToken) -> Vec<SseEvent>;
    /// The last events of a stream.
    fn end(&mut self, usage: &Usage) -> Vec<SseEvent>;
    /// The complete body.
    fn complete_body(&mut self, usage: &Usage) -> Value;
    /// Bytes after the last event.
    fn terminator(&self) -> &'static str {
        "data: [DONE]\n\n"
    }
}

/// A response in progress.
pub(crate) struct PendingResponse {
    pub(crate) body: Box<dyn ResponseBody>,
    pub(crate) updates: Updates,
    /// Sequences that have not finished.
    pub(crate) remaining: usize,
    /// Sequences per prompt: only the first one's reused tokens count.
    pub(crate) choices: usize,
    pub(crate) usage: Usage,
}

impl PendingResponse {
    /// The response, complete or streamed.
    pub(crate) async fn response(self, stream: bool) -> Result<Response, ApiError> {
        if stream { Ok(self.stream()) } else { self.whole().await }
    }

    async fn whole(mut self) -> Result<Response, ApiError> {
        while self.remaining > 0 {
            let update = self.updates.recv().await;
            self.take(update)?;
        }
        Ok(json_response(StatusCode::OK, &self.body.complete_body(&self.usage)))
    }

    fn stream(self) -> Response {
        let (events, receiver) = mpsc::channel(EVENTS);
        tokio::spawn(self.send(events));
        let mut response = typed(StatusCode::OK, "text/event-stream", Body::new(Events(receiver)));
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        // Disables buffering in nginx.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    }

    /// Sends events until the response is complete or the client disconnects.
    async fn send(mut self, events: mpsc::Sender<Bytes>) {
        let mut pending = self.body.begin();
        loop {
            for event in pending {
                if !send(&events, event.bytes()).await {
                    return;
                }
            }
            if self.remaining == 0 {
                break;
            }
            let update = tokio::select! {
                () = events.closed() => return,
                update = tokio::time::timeout(KEEPALIVE, self.updates.recv()) => update,
            };
            pending = match update {
                Ok(update) => match self.take(update) {
                    Ok(events) => events,
                    Err(error) => {
                        send(&events, SseEvent::new(error.json()).bytes()).await;
                        return;
                    }
                },
                Err(_) => {
                    if !send(&events, Bytes::from_static(b": keep-alive\n\n")).await {
                        return;
                    }
                    Vec::new()
                }
            };
        }
        for event in self.body.end(&self.usage) {
            if !send(&events, event.bytes()).await {
                return;
            }
        }
        send(&events, Bytes::from_static(self.body.terminator().as_bytes())).await;
    }

    /// Applies a scheduler event and returns stream events.
    fn take(&mut self, update: Option<(usize, RequestEvent)>) -> Result<Vec<SseEvent>, ApiError> {
        match update {
            Some((index, RequestEvent::Reused(count))) => {
                if index.is_multiple_of(self.choices) {
                    self.usage.cached_tokens += count;
                }
                Ok(Vec::new())
            }
            Some((index, RequestEvent::Echo(piece))) => Ok(self.body.push(index, &piece)),
            Some((index, RequestEvent::Token(piece))) => {
                self.remaining -= usize::from(piece.finish_reason.is_some());
                self.usage.completion_tokens +=
                    usize::from(piece.id.is_some() && piece.finish_reason != Some(FinishReason::EndOfText));
                Ok(self.body.push(index, &piece))
            }
            Some((_, RequestEvent::Failed(failure))) => Err(failure.into()),
            None => Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down")),
        }
    }
}

/// Sends an event; false if the client does not accept it.
async fn send(events: &mpsc::Sender<Bytes>, event: Bytes) -> bool {
    matches!(tokio::time::timeout(WRITE_TIMEOUT, events.send(event)).await, Ok(Ok(())))
}

/// The events of a stream as a response body.
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
