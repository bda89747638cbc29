//! The router asks for the token counts of streams; engines may refuse that.

use crate::engine::{ANSWERS, Act};
use crate::world::{World, step};

const REFUSES: Act = Act::Says(400, "", "{}");

async fn asking(acts: &[Act]) -> World {
    let mut world = World::new(&[acts], &[step("answer", &[0])]).await;
    world.body = r#"{"stream":true,"stream_options":{"include_usage":true}}"#;
    world.asks_usage = true;
    world
}

impl World {
    /// For each request of the engine, whether it asked.
    fn asked(&self) -> Vec<bool> {
        self.pods[0].engine.bodies().iter().map(|body| body.contains("stream_options")).collect()
    }
}

#[tokio::test]
async fn an_engine_that_refuses_to_count_gets_the_request_without_and_is_not_asked_again() {
    let world = asking(&[REFUSES, ANSWERS]).await;
    for _ in 0..2 {
        let response = world.run().await.unwrap();
        assert_eq!(response.answer.head.status, 200);
        assert_eq!((response.has_extra_usage, response.retries), (false, 0));
    }
    assert_eq!(world.asked(), [true, false, false]);
}

#[tokio::test]
async fn a_bad_request_is_sent_twice_only_until_the_engine_is_known_to_count() {
    let world = asking(&[REFUSES, REFUSES, ANSWERS, REFUSES]).await;
    assert_eq!(world.run().await.unwrap().answer.head.status, 400);
    let response = world.run().await.unwrap();
    assert_eq!((response.answer.head.status.as_u16(), response.has_extra_usage), (200, true));
    assert_eq!(world.run().await.unwrap().answer.head.status, 400);
    assert_eq!(world.asked(), [true, false, true, true]);
}
