//! Authentication and origin checks.
//!
//! The server accepts requests from this machine only, unless the operator allows more. A public address
//! needs an API key. A browser sends requests for any page that it shows. Pages of other origins are
//! therefore rejected unless they are allowed, and so are foreign host names (DNS rebinding).

use crate::serve::api::state::ServerState;
use crate::serve::http::error::ApiError;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::IpAddr;
use std::sync::Arc;

/// Paths that need no key: health checks, and the chat page, which prompts for the key.
const OPEN: [&str; 3] = ["/health", "/ready", "/"];

/// What a request has to present.
pub(crate) struct Auth {
    /// Accepted API keys; none are needed if empty.
    keys: Vec<String>,
    /// Allowed browser origins; `*` allows all.
    origins: Vec<String>,
    /// Whether the server listens on a loopback address.
    is_local: bool,
}

impl Auth {
    /// The checks for a server at `address`.
    pub(crate) fn new(address: IpAddr, keys: Vec<String>, origins: Vec<String>) -> Auth {
        Auth { keys, origins, is_local: address.is_loopback() }
    }

    /// Checks host and origin. Returns the origin for the CORS header, if the request is cross-origin and
    /// allowed.
    fn check_origin(&self, headers: &HeaderMap) -> Result<Option<HeaderValue>, ApiError> {
        let host = text(headers, header::HOST).unwrap_or_default();
        let is_ours = is_this_machine(host) || self.origins.iter().any(|origin| is_same(origin, host));
        if self.is_local && self.keys.is_empty() && !is_ours {
            let message =
                format!("host {host:?} is not allowed: use localhost, or start serve with --allow-origin");
            return Err(ApiError::new(StatusCode::FORBIDDEN, message));
        }
        match headers.get(header::ORIGIN) {
            Some(origin) if !is_same(origin.to_str().unwrap_or_default(), host) => {
                let named = |allowed: &String| allowed == "*" || origin == allowed.as_str();
                if !self.origins.iter().any(named) {
                    let message =
                        format!("origin {origin:?} is not allowed: start serve with --allow-origin");
                    return Err(ApiError::new(StatusCode::FORBIDDEN, message));
                }
                Ok(Some(origin.clone()))
            }
            _ => Ok(None),
        }
    }

    /// Checks the API key, if one is required.
    fn check_key(&self, path: &str, headers: &HeaderMap) -> Result<(), ApiError> {
        let shown = text(headers, header::AUTHORIZATION);
        if OPEN.contains(&path) || self.has_key(shown.unwrap_or_default()) {
            return Ok(());
        }
        let message = match shown {
            Some(_) => "invalid API key: expected `Authorization: Bearer KEY`",
            None => "API key required: send `Authorization: Bearer KEY`",
        };
        Err(ApiError::new(StatusCode::UNAUTHORIZED, message).code("invalid_api_key"))
    }

    /// Whether a header has one of the keys, in constant time.
    fn has_key(&self, authorization: &str) -> bool {
        let shown = match authorization.split_once(' ') {
            Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") => key.trim(),
            _ => "",
        };
        let known = self.keys.iter().fold(false, |known, key| known | same(shown.as_bytes(), key.as_bytes()));
        known || self.keys.is_empty()
    }
}

/// The text of a header.
fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Compares in a time that depends only on the length of the first argument.
fn same(shown: &[u8], key: &[u8]) -> bool {
    let mut difference = usize::from(shown.len() != key.len());
    for (index, byte) in shown.iter().enumerate() {
        let of_key = key.get(index % key.len().max(1)).copied().unwrap_or_default();
        difference |= usize::from(byte ^ of_key);
    }
    std::hint::black_box(difference) == 0
}

/// Whether a host, with or without a port, is localhost or an IP address.
fn is_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// Whether an origin has this host.
fn is_same(origin: &str, host: &str) -> bool {
    ["http://", "https://"].iter().any(|scheme| origin.strip_prefix(scheme) == Some(host))
}

/// Whether a request is served even when there are too many connections.
pub(crate) fn is_open_path<B>(request: &axum::http::Request<B>) -> bool {
    ["/health", "/ready"].contains(&request.uri().path())
}

/// Middleware that checks every request. Allowed origins can read every response, errors included.
pub(crate) async fn guard(State(service): State<Arc<ServerState>>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let is_preflight = request.method() == Method::OPTIONS && headers.contains_key(header::ORIGIN);
    let origin = match service.auth.check_origin(headers) {
        Ok(origin) => origin,
        Err(error) => return error.into_response(),
    };
    let wanted = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    // A preflight request has no key and does nothing.
    let key = if is_preflight { Ok(()) } else { service.auth.check_key(request.uri().path(), headers) };
    let mut response = match key {
        Err(error) => error.into_response(),
        Ok(()) if is_preflight => StatusCode::NO_CONTENT.into_response(),
        Ok(()) => next.run(request).await,
    };
    let headers = response.headers_mut();
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::VARY, HeaderValue::from_static("origin"));
        let exposed = HeaderValue::from_static("retry-after");
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        if is_preflight {
            // Clients send arbitrary headers; all are allowed because they are ignored.
            let allowed = wanted.unwrap_or(HeaderValue::from_static("authorization, content-type"));
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
            headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_keys_are_compared_in_full() {
        for (shown, key, is_same) in [
            ("secret", "secret", true),
            ("secre", "secret", false),
            ("", "secret", false),
            ("secretsecret", "secret", false),
        ] {
            assert_eq!(same(shown.as_bytes(), key.as_bytes()), is_same, "{shown}");
        }
    }

    #[test]
    fn foreign_host_names_are_not_local() {
        for (host, is_own) in [
            ("localhost:8080", true),
            ("127.0.0.1", true),
            ("[::1]:8080", true),
            ("evil.example:8080", false),
            ("", false),
        ] {
            assert_eq!(is_this_machine(host), is_own, "{host}");
        }
    }
}
