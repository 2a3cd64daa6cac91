//! Hub address, cache directory and token, from the same environment variables as other hub tools.

use crate::error::Error;
use crate::retry::RetryPolicy;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Settings of a download.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The hub's URL, without a trailing slash.
    pub endpoint: String,
    /// Access token.
    pub token: Option<Token>,
    /// Cache directory.
    pub cache: PathBuf,
    /// Whether the network is disabled.
    pub offline: bool,
    /// Retry policy.
    pub retry: RetryPolicy,
    /// Timeout for a silent server.
    pub silence: Duration,
}

/// An access token and its source.
#[derive(Clone)]
pub struct Token {
    /// The secret.
    pub text: String,
    /// The variable or file that it comes from.
    pub from: String,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a token from {}", self.from)
    }
}

impl Settings {
    /// Reads `HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE` and their older names.
    ///
    /// # Errors
    /// [`Error::Offline`] if there is no cache directory.
    pub fn from_environment() -> Result<Settings, Error> {
        Settings::of(&|name| std::env::var_os(name))
    }

    fn of(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Settings, Error> {
        let value = |name: &str| variable(name).filter(|value| !value.is_empty());
        let path = |name: &str| value(name).map(PathBuf::from);
        let text = |name: &str| value(name).and_then(|value| value.into_string().ok());
        let home = path("HF_HOME")
            .or_else(|| path("XDG_CACHE_HOME").map(|cache| cache.join("huggingface")))
            .or_else(|| path("HOME").map(|home| home.join(".cache/huggingface")));
        let cache = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| home.as_ref().map(|home| home.join("hub")))
            .ok_or_else(|| {
                Error::Offline(
                    "no cache directory: HOME is not set; set HF_HUB_CACHE to a directory".to_owned(),
                )
            })?;
        let token = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"].into_iter().find_map(|name| {
            let text = text(name)?.trim().to_owned();
            (!text.is_empty()).then(|| Token { text, from: name.to_owned() })
        });
        let token = token.or_else(|| {
            let file = path("HF_TOKEN_PATH").or_else(|| home.map(|home| home.join("token")))?;
            let text = std::fs::read_to_string(&file).ok()?.trim().to_owned();
            (!text.is_empty()).then(|| Token { text, from: file.display().to_string() })
        });
        let is_on = |name| {
            text(name).is_some_and(|value| ["1", "ON", "YES", "TRUE"].contains(&&*value.to_uppercase()))
        };
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        Ok(Settings {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token,
            cache,
            offline: is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE"),
            retry: RetryPolicy::default(),
            silence: Duration::from_secs(30),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn reads_the_environment_variables_of_huggingface_hub() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "from a file\n").unwrap();
        let folder = folder.path().to_str().unwrap();
        let settings = |variables: &[(&str, &str)]| {
            let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
            Settings::of(&|name| variables.get(name).map(OsString::from))
        };
        let token = |variables: &[(&str, &str)]| {
            let token = settings(variables).unwrap().token;
            token.map(|token| token.text)
        };
        let cache = |variables: &[(&str, &str)]| settings(variables).unwrap().cache;

        assert!(settings(&[]).is_err());
        assert_eq!(cache(&[("HOME", "/u")]), PathBuf::from("/u/.cache/huggingface/hub"));
        assert_eq!(cache(&[("HOME", "/u"), ("XDG_CACHE_HOME", "/x")]), PathBuf::from("/x/huggingface/hub"));
        assert_eq!(cache(&[("HOME", "/u"), ("HF_HOME", "/h")]), PathBuf::from("/h/hub"));
        assert_eq!(cache(&[("HF_HUB_CACHE", "/c"), ("HF_HOME", "/h")]), PathBuf::from("/c"));

        assert_eq!(token(&[("HOME", "/u")]), None);
        assert_eq!(token(&[("HF_HOME", folder)]).as_deref(), Some("from a file"));
        assert_eq!(token(&[("HF_HOME", folder), ("HF_TOKEN", " hf_x\n")]).as_deref(), Some("hf_x"));
        assert_eq!(token(&[("HF_HOME", folder), ("HF_TOKEN", "")]).as_deref(), Some("from a file"));

        let home = ("HOME", "/u");
        assert_eq!(settings(&[home]).unwrap().endpoint, "https://huggingface.co");
        assert_eq!(settings(&[home, ("HF_ENDPOINT", "http://m/")]).unwrap().endpoint, "http://m");
        assert!(settings(&[home, ("HF_HUB_OFFLINE", "1")]).unwrap().offline);
        assert!(!settings(&[home, ("HF_HUB_OFFLINE", "0")]).unwrap().offline);
        let shown = format!("{:?}", settings(&[home, ("HF_TOKEN", "hf_secret")]).unwrap());
        assert!(!shown.contains("hf_secret"), "{shown}");
    }
}
