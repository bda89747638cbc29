set -eu
# Downloads what a router needs of a model: its tokenizer and its chat template, not its weights.
mkdir -p "$FOLDER"
for file in tokenizer.json tokenizer_config.json chat_template.jinja; do
  url="${HUB:-https://huggingface.co}/$REPOSITORY/resolve/$REVISION/$file"
  if [ -n "${HF_TOKEN:-}" ]; then
    set -- --header "authorization: Bearer $HF_TOKEN"
  else
    set --
  fi
  status=$(curl --silent --show-error --location --retry 5 --retry-connrefused "$@" --output "$FOLDER/$file.part" --write-out '%{http_code}' "$url")
  case $file:$status in
    *:200) mv "$FOLDER/$file.part" "$FOLDER/$file" ;;
    # Some models have their template in tokenizer_config.json.
    chat_template.jinja:404) rm -f "$FOLDER/$file.part" ;;
    *) echo "$url: status $status; check the name of the repository, the revision and the token" >&2; exit 1 ;;
  esac
done
