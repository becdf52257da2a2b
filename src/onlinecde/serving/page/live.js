// What the server tells by itself, over the WebSocket /v1/live; while it does, nothing is asked for.
const AGAIN = 10000;

export class Live {
  constructor(tick, heard, horizon) {
    this.horizon = horizon;
    this.patience = Math.max(3000 * tick, 3000);
    this.heard = heard;
    this.socket = null;
    this.wanted = null;
    this.refusedAt = -AGAIN;
  }
  // Whether answers come by themselves: subscribed, and heard of not long ago.
  get up() { return this.subscribed && Date.now() - this.heardAt < this.patience; }
  subscribe(streams) {
    const wanted = JSON.stringify({ subscribe: streams, ticks: true, changes: true, ...(this.horizon == null ? {} : { horizon: this.horizon }) });
    if (wanted === this.wanted && this.socket) return;
    this.wanted = wanted;
    if (!this.socket) this.open();
    else if (this.socket.readyState === WebSocket.OPEN) this.socket.send(wanted);
  }
  open() {
    if (Date.now() - this.refusedAt < AGAIN) return;
    const socket = this.socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/v1/live`);
    socket.addEventListener("open", () => socket.send(this.wanted));
    socket.addEventListener("message", (event) => {
      this.heardAt = Date.now();
      for (const message of JSON.parse(event.data)) {
        if (message.type === "subscribed") this.subscribed = true;
        else if (message.type === "error") socket.close();
        else this.heard(message);
      }
    });
    socket.addEventListener("close", (event) => {
      this.socket = null;
      this.subscribed = false;
      this.dropped = true;
      if (event.code >= 4400) this.refusedAt = Date.now();
    });
  }
}
