//! HTTP requests.
//!
//! Redirections are followed here, one by one, because the access token is sent only to the hub itself.

use crate::error::{Error, HttpError};
use crate::retry::{TransferError, retry_after};
use crate::settings::Settings;
use std::io::{Read, Take};
use std::sync::Arc;
use std::time::Duration;
use ureq::http::{HeaderMap, Uri};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, BodyReader};

/// Maximum number of redirections.
const REDIRECTIONS: usize = 8;

/// Maximum size of a listing or index, in bytes.
const LONGEST_TEXT: u64 = 64 << 20;

/// The HTTP client.
pub(crate) struct Transport {
    agent: Agent,
    home: Origin,
    token: Option<String>,
}

/// A successful response.
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    headers: HeaderMap,
    body: BodyReader<'static>,
}

/// A failed request.
pub(crate) enum TransportError {
    /// An error response.
    Http(HttpError),
    /// Any other failure.
    Transfer(TransferError),
}

/// Scheme, host and port of a server.
#[derive(Debug, PartialEq, Eq)]
struct Origin(String, String, Option<u16>);

impl Transport {
    /// Creates a client for the hub of these settings.
    pub(crate) fn new(settings: &Settings) -> Result<Transport, Error> {
        let uri: Option<Uri> = settings.endpoint.parse().ok();
        let home = uri.as_ref().and_then(Origin::of).ok_or_else(|| {
            Error::InvalidResponse(format!("invalid HF_ENDPOINT {:?}: expected a URL", settings.endpoint))
        })?;
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("forge/", env!("CARGO_PKG_VERSION")))
            // Sizes and checksums refer to the uncompressed file.
            .accept_encoding("identity")
            .timeout_connect(Some(settings.silence.min(Duration::from_secs(10))))
            .timeout_recv_response(Some(settings.silence))
            .timeout_per_read(Some(settings.silence));
        if ["localhost", "127.0.0.1", "[::1]"].contains(&&*home.1) {
            config = config.proxy(None);
        }
        if let Some(roots) = extra_root_certs()? {
            config = config.tls_config(TlsConfig::builder().root_certs(roots).build());
        }
        let token = settings.token.as_ref().map(|token| token.text.clone());
        Ok(Transport { agent: config.build().into(), home, token })
    }

    /// Requests a file from byte `from` on.
    pub(crate) fn get(&self, url: &str, from: u64) -> Result<HttpResponse, TransportError> {
        self.send(url, from, true)
    }

    /// Requests the hub's headers for a file.
    pub(crate) fn head(&self, url: &str) -> Result<HttpResponse, TransportError> {
        self.send(url, 0, false)
    }

    fn send(&self, url: &str, from: u64, whole: bool) -> Result<HttpResponse, TransportError> {
        let mut url = url.to_owned();
        for _ in 0..REDIRECTIONS {
            let bad = || TransportError::from(Error::InvalidResponse(format!("invalid URL {url:?}")));
            let origin = url.parse().ok().as_ref().and_then(Origin::of).ok_or_else(bad)?;
            let mut request = if whole { self.agent.get(&url) } else { self.agent.head(&url) };
            if from > 0 {
                request = request.header("Range", format!("bytes={from}-"));
            }
            if let (Some(token), true) = (&self.token, origin == self.home) {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            let response = request.call().map_err(|error| failed(&url, error))?;
            let (parts, body) = response.into_parts();
            let response = HttpResponse {
                status: parts.status.as_u16(),
                headers: parts.headers,
                body: body.into_reader(),
            };
            let target = response.header("location").and_then(|location| origin.join(location));
            match target {
                // Other servers do not have the hub's headers, so HEAD requests are redirected only within
                // the hub.
                Some(target) if response.is_redirection() && (whole || self.is_hub(&target)) => url = target,
                _ => return response.into_result(&url),
            }
        }
        Err(Error::InvalidResponse(format!("{url}: too many redirections (more than {REDIRECTIONS})")).into())
    }

    fn is_hub(&self, url: &str) -> bool {
        url.parse().ok().as_ref().and_then(Origin::of).is_some_and(|origin| origin == self.home)
    }
}

impl HttpResponse {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body as a reader.
    pub(crate) fn body(&mut self) -> &mut impl Read {
        &mut self.body
    }

    /// The whole body of a short response.
    pub(crate) fn bytes(self, url: &str) -> Result<Vec<u8>, TransferError> {
        let mut bytes = Vec::new();
        let mut body: Take<_> = self.body.take(LONGEST_TEXT);
        body.read_to_end(&mut bytes).map_err(|error| {
            TransferError::transient(format!("{url}: the response was truncated ({error})"))
        })?;
        Ok(bytes)
    }

    fn is_redirection(&self) -> bool {
        matches!(self.status, 301 | 302 | 303 | 307 | 308)
    }

    fn into_result(self, url: &str) -> Result<HttpResponse, TransportError> {
        let text = |name| self.header(name).unwrap_or_default().to_owned();
        match self.status {
            // 416 is handled by the caller.
            200..=399 | 416 => Ok(self),
            408 | 425 | 429 | 500 | 502..=504 => Err(TransportError::Transfer(TransferError::Transient {
                what: format!("{url}: the server returned status {}", self.status),
                wait: self.header("retry-after").and_then(retry_after),
            })),
            status => Err(TransportError::Http(HttpError {
                status,
                code: text("x-error-code"),
                message: text("x-error-message"),
                url: url.to_owned(),
            })),
        }
    }
}

impl Origin {
    fn of(uri: &Uri) -> Option<Origin> {
        let scheme = uri.scheme_str().filter(|scheme| ["http", "https"].contains(scheme))?;
        let port = uri.port_u16().or(if scheme == "http" { Some(80) } else { Some(443) });
        Some(Origin(scheme.to_owned(), uri.host()?.to_lowercase(), port))
    }

    /// The target of a redirection; `None` if invalid.
    fn join(&self, location: &str) -> Option<String> {
        let Origin(scheme, host, port) = self;
        if location.starts_with("//") {
            Some(format!("{scheme}:{location}"))
        } else if location.starts_with('/') {
            Some(format!("{scheme}://{host}:{}{location}", (*port)?))
        } else {
            location.parse().ok().as_ref().and_then(Origin::of).map(|_| location.to_owned())
        }
    }
}

impl From<Error> for TransportError {
    fn from(error: Error) -> TransportError {
        TransportError::Transfer(TransferError::Permanent(error))
    }
}

/// Root certificates for a proxy, from the environment; otherwise Mozilla's are used.
fn extra_root_certs() -> Result<Option<RootCerts>, Error> {
    let Some(path) = std::env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty()) else {
        return Ok(None);
    };
    let path = std::path::PathBuf::from(path);
    let text = std::fs::read(&path).map_err(|error| Error::cache(&path, error))?;
    let items = parse_pem(&text).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let certificates: Vec<_> = items.collect();
    Ok((!certificates.is_empty()).then(|| RootCerts::Specific(Arc::new(certificates))))
}

/// A request that failed without a response.
fn failed(url: &str, error: ureq::Error) -> TransportError {
    match error {
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) | ureq::Error::Http(_) | ureq::Error::BadUri(_) => {
            Error::InvalidResponse(format!("{url}: {error}")).into()
        }
        ureq::Error::HostNotFound => {
            TransportError::Transfer(TransferError::transient(format!("{url}: host not found")))
        }
        error => TransportError::Transfer(TransferError::transient(format!("{url}: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_sent_to_the_same_origin_only() {
        let origin = |url: &str| url.parse().ok().as_ref().and_then(Origin::of);
        let home = origin("https://hub.example").unwrap();
        for (location, same) in [
            ("/a/b", true),
            ("https://HUB.example/x", true),
            ("https://hub.example:443/x", true),
            ("http://hub.example/x", false),
            ("https://hub.example:8443/x", false),
            ("//other.example/x", false),
            ("https://hub.example@other.example/x", false),
            ("https://hub.example.other.example/", false),
        ] {
            let target = home.join(location).unwrap();
            assert_eq!(origin(&target).unwrap() == home, same, "{location}");
        }
        for location in ["ftp://hub.example/x", "file:///etc/passwd", "x y"] {
            assert_eq!(home.join(location), None, "{location}");
        }
    }
}
