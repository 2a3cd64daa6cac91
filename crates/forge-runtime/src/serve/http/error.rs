//! API errors in OpenAI's format.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use forge_device::error::Error;
use serde_json::{Value, json};

/// An error response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    status: StatusCode,
    message: String,
    /// The request field that caused the error.
    param: Option<String>,
    code: Option<&'static str>,
    /// Seconds after which a retry may succeed.
    retry_after: Option<u64>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError { status, message: message.into(), param: None, code: None, retry_after: None }
    }

    /// An error about a request field.
    pub(crate) fn of(param: &str, message: impl Into<String>) -> ApiError {
        ApiError { param: Some(param.to_owned()), ..ApiError::new(StatusCode::BAD_REQUEST, message) }
    }

    pub(crate) fn code(self, code: &'static str) -> ApiError {
        ApiError { code: Some(code), ..self }
    }

    /// Adds a `Retry-After` header.
    pub(crate) fn retry_after(self, seconds: u64) -> ApiError {
        ApiError { retry_after: Some(seconds), ..self }
    }

    /// Too many open connections.
    pub(crate) fn overloaded() -> ApiError {
        let message = "too many connections are open; try again later";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code("too_many_connections").retry_after(1)
    }

    /// The queue is full.
    pub(crate) fn busy(seconds: u64) -> ApiError {
        let message = "the request queue is full (--queue)";
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, message).code("queue_full").retry_after(seconds)
    }

    /// The error as JSON, for a response or an event.
    pub(crate) fn json(&self) -> Value {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        json!({ "error": { "message": self.message, "type": kind, "param": self.param, "code": self.code } })
    }
}

impl From<Error> for ApiError {
    fn from(failure: Error) -> ApiError {
        let status = match failure {
            Error::Usage(_) => StatusCode::BAD_REQUEST,
            Error::Runtime(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        ApiError::new(status, failure.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status, &self.json());
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// A JSON response.
pub(crate) fn json_response(status: StatusCode, value: &Value) -> Response {
    typed(status, "application/json", value.to_string())
}

/// A response with a content type.
pub(crate) fn typed(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
