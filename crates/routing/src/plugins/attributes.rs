//! `attributes`: headers and body fields as named values, for filters, scorers and expressions.
//!
//! The request's own attributes are reserved names: a client cannot pass another tenant in a
//! header.

use wornpath_yaml::{Parameter, Takes};

use super::value_source::ValueSource;
use crate::name::Name;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::slot::{Attributes, Writes};
use crate::stage::{Prepare, Preparing, Rejection};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "attributes",
    summary: "Makes headers and body fields available to later plugins as named attributes. `tenant`, `model`, `lora` \
              and `priority` are set if the request has them.",
    parameters: &[
        Parameter::with_default(
            "headers",
            Takes::Texts,
            "[]",
            "Headers, as `name=header`, or `header` alone for an attribute of that name.",
        ),
        Parameter::with_default(
            "fields",
            Takes::Texts,
            "[]",
            "Body fields, as `name=field`, or `field` alone; `metadata.region` for a nested field.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "attributes: {headers: [region=x-client-region], fields: [user]}",
    make: Make::Prepare(make),
};

/// Attributes of the request itself; no header or field can replace them.
const RESERVED: [&str; 4] = ["tenant", "model", "lora", "priority"];

struct CollectAttributes {
    attributes: Writes<Attributes>,
    own: [Name; 4],
    sources: Vec<(Name, ValueSource)>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Prepare>, AssemblyRefused> {
    let mut sources = Vec::new();
    for parameter in ["headers", "fields"] {
        for item in assembly.get::<Vec<String>>(parameter) {
            let (name, source) = item.split_once('=').unwrap_or((&item, &item));
            let name = name.trim();
            let source = source.trim();
            let is_defined = RESERVED.contains(&name)
                || sources.iter().any(|(known, _): &(Name, _)| *known == *name);
            if name.is_empty() || source.is_empty() {
                let message = format!("`{item}` has no name or no source");
                return Err(assembly.refuse(
                    parameter,
                    &message,
                    "write `name=header` or `name=field`",
                ));
            }
            if is_defined {
                let message = format!("attribute `{name}` is already defined");
                return Err(assembly.refuse(parameter, &message, "choose another name"));
            }
            let source = if parameter == "headers" {
                ValueSource::header(source)
            } else {
                ValueSource::field(source)
            };
            sources.push((name.into(), source));
        }
    }
    Ok(Box::new(CollectAttributes {
        attributes: assembly.writes(),
        own: RESERVED.map(Name::from),
        sources,
    }))
}

impl Prepare for CollectAttributes {
    fn prepare(&self, preparing: &mut Preparing<'_>) -> Result<(), Rejection> {
        let request = preparing.request();
        let attributes = &mut preparing.write(&self.attributes).0;
        let [tenant, model, lora, priority] = &self.own;
        let level = request.priority.level().to_string();
        let own = [
            (tenant, request.tenant.clone()),
            (model, Some(request.model.base.clone())),
            (lora, request.model.lora.clone()),
            (priority, Some(level.into())),
        ];
        let own = own.into_iter().filter_map(|(name, value)| Some((name.clone(), value?)));
        attributes.extend(own);
        let found = |(name, source): &(Name, ValueSource)| {
            Some((name.clone(), source.with_text(request, |text| Name::from(text))?))
        };
        attributes.extend(self.sources.iter().filter_map(found));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    #[test]
    fn present_headers_and_fields_become_attributes() {
        let mut harness = Harness::of(1);
        harness.request.headers = vec![("x-region".into(), "eu".into())];
        harness.request.tenant = Some("t".into());
        let yaml = ["attributes: {headers: [region=X-Region, x-none], fields: [user]}"];
        let attributes: Attributes = harness.prepared(&yaml).unwrap().unwrap();
        let get = |name: &str| attributes.get(&name.into()).map(|value| value.as_str().to_owned());
        assert_eq!(get("region").as_deref(), Some("eu"));
        assert_eq!(get("tenant").as_deref(), Some("t"));
        assert_eq!(get("model").as_deref(), Some("m"));
        assert_eq!(get("priority").as_deref(), Some("4"));
        assert_eq!((get("x-none"), get("user"), get("lora")), (None, None, None));
    }

    #[test]
    fn reserved_and_repeated_attribute_names_are_refused() {
        let error = |yaml| Harness::assembly_error(Stage::Prepare, yaml);
        assert_eq!(
            error("attributes: {headers: [tenant=x-tenant]}"),
            "`headers` of `attributes`: attribute `tenant` is already defined"
        );
        assert_eq!(
            error("attributes: {headers: [a], fields: [a=user]}"),
            "`fields` of `attributes`: attribute `a` is already defined"
        );
        assert_eq!(
            error("attributes: {headers: [a=]}"),
            "`headers` of `attributes`: `a=` has no name or no source"
        );
    }
}
