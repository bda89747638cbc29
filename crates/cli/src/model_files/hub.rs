//! Downloads from the Hugging Face hub, or a mirror of it: the files of a tokenizer, at a pinned
//! commit.
//!
//! The hub says first which commit a revision is, and the size and checksum of every file of it, so
//! that nothing is downloaded that is too large, and nothing is used that is not what the commit
//! contains. A file is a git blob, or a large one that is kept beside git under its SHA-256.
//! Files come after redirections to other hosts, which never see the token.

use crate::http::{Endpoint, HttpClient, HttpResponse, Payload, TlsArguments};
use anyhow::{Context, anyhow};
use hyper::{Method, StatusCode, Uri};
use ring::digest::{Context as Digest, SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fmt, fs, io};
use tokio::time::timeout;
use wornpath_config::{MAX_TOKENIZER_BYTES, TOKENIZER_FILES, TokenizerFiles};
use wornpath_gateway::fleet::engine_facts::ModelOrigin;
use wornpath_gateway::fleet::tokenizer_finder::NotFound;

const PUBLIC_HUB: &str = "https://huggingface.co";
const DEFAULT_REVISION: &str = "main";
/// Limit on the description of a repository, which lists its files.
const MAX_LIST_BYTES: usize = 16 << 20;
const MAX_REDIRECTIONS: usize = 5;
/// Time for each file.
const TIMEOUT: Duration = Duration::from_secs(600);

/// A repository at a revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Repository {
    /// `organization/name`.
    pub(super) name: String,
    /// Branch, tag or commit.
    pub(super) revision: String,
}

impl Repository {
    /// The repository that an engine loaded its model from.
    pub(super) fn of(origin: &ModelOrigin) -> Result<Self, NotFound> {
        let name = origin.root.clone().unwrap_or_default();
        let revision = origin.revision.clone().unwrap_or_else(|| DEFAULT_REVISION.to_owned());
        let parts: Vec<_> = name.split('/').collect();
        if parts.len() > 2 || !parts.iter().all(|part| is_name(part)) {
            let problem = format!("its engine loaded it from `{name}`, which is no repository");
            return Err(NotFound::Final(problem));
        }
        if !revision.split('/').all(is_name) {
            return Err(NotFound::Final(format!("`{revision}` is no revision of a repository")));
        }
        Ok(Self { name, revision })
    }

    /// Its folder in the cache.
    pub(super) fn cache_name(&self) -> String {
        format!("models--{}", self.name.replace('/', "--"))
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.revision)
    }
}

/// Whether a text is a part of a repository's name: it can be a file name and a part of a URL.
fn is_name(part: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !part.is_empty()
        && part.len() <= 96
        && !part.starts_with(['.', '-'])
        && !part.contains("..")
        && part.bytes().all(is_allowed)
}

/// A hub and how to authenticate there.
pub(super) struct Hub {
    endpoint: String,
    token_file: Option<PathBuf>,
}

/// The files of a tokenizer at a commit.
pub(super) struct Download {
    pub(super) commit: String,
    pub(super) files: TokenizerFiles,
}

/// A file of a repository, as the hub describes it.
struct ListedFile {
    bytes: u64,
    checksum: Checksum,
}

/// A checksum in hexadecimal digits.
enum Checksum {
    GitBlob(String),
    Sha256(String),
}

/// Why a call failed, and whether a repetition may succeed.
struct HubError {
    message: String,
    may_succeed_later: bool,
}

impl From<anyhow::Error> for HubError {
    fn from(error: anyhow::Error) -> Self {
        Self { message: format!("{error:#}"), may_succeed_later: true }
    }
}

impl From<HubError> for NotFound {
    fn from(error: HubError) -> Self {
        match error.may_succeed_later {
            true => Self::Now(error.message),
            false => Self::Final(error.message),
        }
    }
}

impl Hub {
    /// The hub of `HF_ENDPOINT`, by default the public one.
    pub(super) fn of_environment(token_file: Option<PathBuf>) -> Self {
        let endpoint = env::var("HF_ENDPOINT").ok().filter(|endpoint| !endpoint.is_empty());
        let endpoint = endpoint.unwrap_or_else(|| PUBLIC_HUB.to_owned());
        Self { endpoint: endpoint.trim_end_matches('/').to_owned(), token_file }
    }

    fn token(&self) -> Option<String> {
        let variable = env::var("HF_TOKEN").ok().filter(|token| !token.is_empty());
        variable.or_else(|| {
            let token = fs::read_to_string(self.token_file.as_ref()?).ok()?;
            Some(token.trim().to_owned()).filter(|token| !token.is_empty())
        })
    }

    /// Downloads the files of a repository's tokenizer.
    pub(super) async fn download(&self, repository: &Repository) -> Result<Download, NotFound> {
        let (commit, listed) = self.list(repository).await?;
        if listed[0].is_none() {
            return Err(NotFound::Final(format!(
                "{repository} at {} has no {}",
                self.endpoint, TOKENIZER_FILES[0]
            )));
        }
        let mut files = TokenizerFiles { place: repository.name.clone(), ..Default::default() };
        for (at, listed) in listed.into_iter().enumerate() {
            let Some(listed) = listed else { continue };
            let file = TOKENIZER_FILES[at];
            let name = format!("{file} of {repository} at {}", self.endpoint);
            if listed.bytes > MAX_TOKENIZER_BYTES {
                return Err(NotFound::Final(format!(
                    "{name} has {} bytes; the limit is {MAX_TOKENIZER_BYTES}",
                    listed.bytes
                )));
            }
            let url = format!("{}/{}/resolve/{commit}/{file}", self.endpoint, repository.name);
            let most = usize::try_from(listed.bytes).unwrap_or(usize::MAX);
            let content = self.get(&url, most).await?;
            if !listed.is_content(&content) {
                // Perhaps what a proxy has put in its place.
                return Err(NotFound::Now(format!("{name} does not have its checksum")));
            }
            files.content[at] = Some(content);
        }
        Ok(Download { commit, files })
    }

    /// The commit that a revision is now, and its files of a tokenizer.
    async fn list(
        &self,
        repository: &Repository,
    ) -> Result<(String, [Option<ListedFile>; TOKENIZER_FILES.len()]), HubError> {
        let Repository { name, revision } = repository;
        let revision = revision.replace('/', "%2F");
        let url = format!("{}/api/models/{name}/revision/{revision}?blobs=true", self.endpoint);
        let list: Value = serde_json::from_slice(&self.get(&url, MAX_LIST_BYTES).await?)
            .with_context(|| format!("{url} is not JSON"))?;
        let commit = list["sha"].as_str().filter(|commit| is_hash(commit));
        let commit = commit.with_context(|| format!("{url} has no commit"))?;
        let all = list["siblings"].as_array().map(Vec::as_slice).unwrap_or_default();
        let find = |wanted: &str| {
            let file = all.iter().find(|file| file["rfilename"] == wanted)?;
            ListedFile::read(file)
        };
        Ok((commit.to_owned(), TOKENIZER_FILES.map(find)))
    }

    /// The body at a URL, after redirections.
    async fn get(&self, url: &str, most: usize) -> Result<Vec<u8>, HubError> {
        let whole = timeout(TIMEOUT, self.follow(url, most)).await;
        whole.map_err(|_| anyhow!("timeout: {url} took more than {} s", TIMEOUT.as_secs()))?
    }

    async fn follow(&self, url: &str, most: usize) -> Result<Vec<u8>, HubError> {
        let mut url = url.to_owned();
        for _ in 0..=MAX_REDIRECTIONS {
            let response = self.call(&url).await?;
            let status = response.status();
            if status.is_redirection() {
                url = redirected(&url, response.header("location"))?;
                continue;
            }
            if !status.is_success() {
                return Err(refused(&url, status, self.token().is_some()));
            }
            return Ok(response.bytes_within(most).await?.into());
        }
        Err(anyhow!("{url}: more than {MAX_REDIRECTIONS} redirections").into())
    }

    async fn call(&self, url: &str) -> anyhow::Result<HttpResponse> {
        let (origin, path) = split(url)?;
        let is_hub = split(&self.endpoint).is_ok_and(|(hub, _)| hub == origin);
        let tls = TlsArguments::default();
        let endpoint = Endpoint::new("the hub", "HF_ENDPOINT", &origin, &tls)?;
        let token = self.token().filter(|_| is_hub);
        let client = HttpClient::new(endpoint, token.as_deref())?;
        client.send(Method::GET, &path, Payload::empty()).await
    }
}

/// The origin of a URL, and its path with the query.
fn split(url: &str) -> anyhow::Result<(String, String)> {
    let uri: Uri = url.parse().with_context(|| format!("`{url}` is not a URL"))?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(anyhow!("`{url}` is not a URL with a host"));
    };
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    Ok((format!("{scheme}://{authority}"), path.to_owned()))
}

/// Where a redirection leads: a URL, or a path of the same host. TLS is never left.
fn redirected(from: &str, location: &str) -> anyhow::Result<String> {
    let (origin, _) = split(from)?;
    let url = if location.starts_with('/') && !location.starts_with("//") {
        format!("{origin}{location}")
    } else {
        location.to_owned()
    };
    let (target, _) = split(&url).with_context(|| format!("redirection of {from}"))?;
    if origin.starts_with("https://") && !target.starts_with("https://") {
        return Err(anyhow!("redirection of {from} leaves TLS for `{target}`"));
    }
    Ok(url)
}

fn refused(url: &str, status: StatusCode, has_token: bool) -> HubError {
    let cure = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if !has_token => {
            "; if the repository is private or gated, set HF_TOKEN"
        }
        _ => "",
    };
    let may_succeed_later = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
    HubError { message: format!("{url}: status {status}{cure}"), may_succeed_later }
}

fn is_hash(text: &str) -> bool {
    (7..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl ListedFile {
    fn read(file: &Value) -> Option<Self> {
        let hash = |value: &Value| value.as_str().map(str::to_lowercase);
        let large = &file["lfs"];
        let checksum = match hash(&large["sha256"]) {
            Some(sha256) => Checksum::Sha256(sha256),
            None => Checksum::GitBlob(hash(&file["blobId"])?),
        };
        let bytes = large["size"].as_u64().or_else(|| file["size"].as_u64())?;
        Some(Self { bytes, checksum })
    }

    fn is_content(&self, content: &[u8]) -> bool {
        match &self.checksum {
            Checksum::Sha256(wanted) => hex(digest(&SHA256, content).as_ref()) == *wanted,
            Checksum::GitBlob(wanted) => {
                let mut blob = Digest::new(&SHA1_FOR_LEGACY_USE_ONLY);
                blob.update(format!("blob {}\0", content.len()).as_bytes());
                blob.update(content);
                hex(blob.finish().as_ref()) == *wanted
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Download {
    /// Stores the files as `huggingface_hub` does, so that it finds them too. The vocabulary comes
    /// last and the reference after it: a folder that has them has everything.
    pub(super) fn save(&self, folder: &Path, repository: &Repository) -> io::Result<()> {
        let snapshot = folder.join("snapshots").join(&self.commit);
        fs::create_dir_all(&snapshot)?;
        for (file, content) in TOKENIZER_FILES.iter().zip(&self.files.content).rev() {
            if let Some(content) = content {
                write_whole(&snapshot.join(file), content)?;
            }
        }
        let reference = folder.join("refs").join(&repository.revision);
        if let Some(folder) = reference.parent() {
            fs::create_dir_all(folder)?;
        }
        write_whole(&reference, self.commit.as_bytes())
    }
}

/// Writes a file that is there as a whole or not at all.
fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let part = path.with_extension(format!("{}.part", std::process::id()));
    fs::write(&part, content)?;
    fs::rename(&part, path)
}

#[cfg(test)]
mod tests;
