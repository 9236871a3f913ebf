// The worker that all tabs of a browser share.  Its name is the page's version: after an upgrade, new tabs get a new one.

import { Streams } from "./streams.js";

const streams = new Streams();
self.addEventListener("connect", (event) => streams.attach(event.ports[0]));
