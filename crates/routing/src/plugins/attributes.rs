//! `attributes`: headers and body fields as named values, for filters, scorers and expressions.

use wornpath_yaml::{Parameter, Takes};

use super::source::DepthSource;
use crate::name::Name;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::slot::Writes;
use crate::stage::{Prepare, Preparing, Rejection};
use crate::values::Attributes;

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "attributes",
    summary: "Names values of the request for later plugins. `tenant`, `model`, `lora` and `priority` are \
              always there if the request has them.",
    parameters: &[
        Parameter::with_default(
            "headers",
            Takes::Texts,
            "[]",
            "Headers, as `name=header`, or `header` alone if it is to be the name.",
        ),
        Parameter::with_default(
            "fields",
            Takes::Texts,
            "[]",
            "Body fields, as `name=field`, or `field` alone; `metadata.region` for one inside another.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "attributes: {headers: [region=x-client-region], fields: [user]}",
    make: Make::Prepare(make),
};

/// What the request itself says; a header cannot pass for it.
const OWN: [&str; 4] = ["tenant", "model", "lora", "priority"];

struct AttributesFrom {
    attributes: Writes<Attributes>,
    own: [Name; 4],
    sources: Vec<(Name, DepthSource)>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Prepare>, AssemblyRefused> {
    let mut sources = Vec::new();
    for parameter in ["headers", "fields"] {
        for item in assembly.get::<Vec<String>>(parameter) {
            let (name, place) = item.split_once('=').unwrap_or((&item, &item));
            let (name, place) = (name.trim(), place.trim());
            let name_is_taken =
                OWN.contains(&name) || sources.iter().any(|(known, _): &(Name, _)| *known == *name);
            if name.is_empty() || place.is_empty() {
                let message = format!("`{item}` lacks a name or a place");
                return Err(assembly.refuse(parameter, &message, "write `name=place`"));
            }
            if name_is_taken {
                let message = format!("`{name}` is an attribute already");
                return Err(assembly.refuse(parameter, &message, "choose another name"));
            }
            let source = if parameter == "headers" {
                DepthSource::header(place)
            } else {
                DepthSource::field(place)
            };
            sources.push((name.into(), source));
        }
    }
    Ok(Box::new(AttributesFrom {
        attributes: assembly.writes(),
        own: OWN.map(Name::from),
        sources,
    }))
}

impl Prepare for AttributesFrom {
    fn prepare(&self, scene: &mut Preparing<'_>) -> Result<(), Rejection> {
        let request = scene.request();
        let attributes = &mut scene.write(&self.attributes).0;
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
        let found = |(name, source): &(Name, DepthSource)| {
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
    fn headers_and_fields_get_names_and_absent_ones_are_absent() {
        let mut rehearsal = Harness::of(1);
        rehearsal.request.headers = vec![("x-region".into(), "eu".into())];
        rehearsal.request.tenant = Some("t".into());
        let yaml = ["attributes: {headers: [region=X-Region, x-none], fields: [user]}"];
        let attributes: Attributes = rehearsal.prepared(&yaml).unwrap().unwrap();
        let get = |name: &str| attributes.get(&name.into()).map(|value| value.as_str().to_owned());
        assert_eq!(get("region").as_deref(), Some("eu"));
        assert_eq!(get("tenant").as_deref(), Some("t"));
        assert_eq!(get("model").as_deref(), Some("m"));
        assert_eq!(get("priority").as_deref(), Some("4"));
        assert_eq!((get("x-none"), get("user"), get("lora")), (None, None, None));
    }

    #[test]
    fn a_header_cannot_pass_for_the_tenant_and_names_are_unique() {
        let complaint = |yaml| Harness::complaint(Stage::Prepare, yaml);
        assert_eq!(
            complaint("attributes: {headers: [tenant=x-tenant]}"),
            "`headers` of `attributes`: `tenant` is an attribute already"
        );
        assert_eq!(
            complaint("attributes: {headers: [a], fields: [a=user]}"),
            "`fields` of `attributes`: `a` is an attribute already"
        );
        assert_eq!(
            complaint("attributes: {headers: [a=]}"),
            "`headers` of `attributes`: `a=` lacks a name or a place"
        );
    }
}
